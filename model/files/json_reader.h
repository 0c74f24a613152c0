// JSON from strangers, value by value: what a text may hold is said in rules, everything else is
// refused where it stands, and nothing is kept that nobody asked for. Used where base/json.h would
// be too generous (numbers) or hold too much (10^5 keys). nlohmann's parser reads the text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace forebay {

// Says which values are allowed. A function may move from the text that it gets; after false
// (nullptr) the reader fails with the problem that JsonReader::Fail was told.
struct JsonRule {
  std::function<const JsonRule*(std::string& key)> member;  // of an object: the rule of its value
  const JsonRule* element = nullptr;                        // of an array: the rule of each
  std::function<bool(std::string& text)> string;
  std::function<bool(int64_t value)> number;  // whole, without sign, of 63 bits
  std::function<bool()> end;                  // of the object or array
  bool allows_null = false;
  int any_depth = -1;  // 0 or more: anything, nested at most so deep
};

// Thread-compatible.
class JsonReader {
 public:
  // Whether all of `text` is one value as `rule` has it; else problem() says what is wrong.
  bool Read(std::string_view text, const JsonRule& rule);
  // Keeps the first problem; returns false.
  bool Fail(std::string problem);
  const std::string& problem() const { return problem_; }

 private:
  friend struct JsonReaderEvents;
  // The rule of the value that begins.
  const JsonRule& TakeRule();
  template <typename Take>
  bool Value(const Take& take);
  bool Open(bool is_object);
  bool OpenAny();
  bool Close();

  std::vector<const JsonRule*> open_;  // objects and arrays around the next value
  const JsonRule* next_ = nullptr;     // of a member's value, or of the whole
  int any_open_ = 0;                   // the same of a value that may be anything
  int any_depth_ = 0;
  std::string problem_;
};

// `text` as it can stand in a message: control characters and quotes escaped, cut after 100 bytes.
std::string Printable(std::string_view text);

}  // namespace forebay
