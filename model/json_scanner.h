// A pull parser for JSON from strangers: numbers are whole and fit int64, strings are valid UTF-8,
// nesting is bounded, and nothing is kept that the caller does not ask for. Used where base/json.h
// would be too generous (numbers) or too slow (10^5 keys).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace forebay {

// Every method skips white space first and returns false once anything went wrong; problem() then
// says what, at offset(). Thread-compatible. The text is borrowed.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  bool ok() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }
  size_t offset() const { return offset_; }  // in bytes
  // Records the first problem; returns false.
  bool Fail(std::string problem);

  bool String(std::string* value);
  bool NonNegativeInt(int64_t* value);
  // Whether a null was there (and is now behind).
  bool SkipNull();
  // Skips any value nested at most `max_depth` deep; checks that it is JSON.
  bool SkipValue(int max_depth);
  // Only white space is left.
  bool End();

  // Calls on_member(key) with the scanner at the value, which on_member must consume. Does not look
  // for duplicate keys.
  template <typename OnMember>
  bool Object(const OnMember& on_member) {
    return Sequence('{', '}', [&] {
      std::string key;
      return String(&key) && Consume(':') && on_member(std::move(key));
    });
  }
  // Calls on_element() with the scanner at each element.
  template <typename OnElement>
  bool Array(const OnElement& on_element) {
    return Sequence('[', ']', on_element);
  }

 private:
  template <typename OnItem>
  bool Sequence(char open, char close, const OnItem& on_item) {
    if (!Consume(open)) return false;
    if (Peek() == close) return Consume(close);
    while (true) {
      if (!on_item()) return false;
      if (Peek() != ',') return Consume(close);
      ++offset_;
    }
  }
  // The next character that is no white space, or '\0' at the end.
  char Peek();
  bool Consume(char expected);
  bool Literal(std::string_view word);
  bool SkipNumber();
  bool Escape(std::string* value);
  bool HexDigits(uint32_t* code);
  bool Utf8(std::string* value);

  std::string_view text_;
  size_t offset_ = 0;
  std::string problem_;
};

// `text` as it can stand in a message: control characters and quotes escaped, cut after 100 bytes.
std::string Printable(std::string_view text);

}  // namespace forebay
