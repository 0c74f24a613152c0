#include "forebay/model/files/json_reader.h"

#include <limits>
#include <utility>

#include "fmt/format.h"

namespace forebay {
namespace {

std::string ExpectedBy(const JsonRule& rule) {
  return fmt::format("{} is expected", rule.member    ? "'{'"
                                       : rule.element ? "'['"
                                       : rule.string  ? "a string"
                                                      : "a whole number without sign");
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
// value - invalid literal; last read: 'x'" without the text that was read, which may be anything.
std::string ReasonIn(std::string_view what) {
  const size_t dash = what.find(" - ");
  if (dash == std::string_view::npos) return "a number is too large";
  return std::string(what.substr(dash + 3, what.find("; last read") - (dash + 3)));
}

}  // namespace

template <typename Take>
bool JsonReader::Value(const Take& take) {
  if (any_open_ > 0) return true;
  const JsonRule& rule = TakeRule();
  return rule.any_depth >= 0 || take(rule) || Fail(ExpectedBy(rule));
}

// The events of nlohmann::json::sax_parse.
struct JsonReaderEvents {
  static constexpr auto kNever = [](const JsonRule&) { return false; };

  bool null() {
    return reader.Value([](const JsonRule& rule) { return rule.allows_null; });
  }
  bool boolean(bool) { return reader.Value(kNever); }
  bool number_integer(int64_t) { return reader.Value(kNever); }  // with a sign
  bool number_unsigned(uint64_t value) {
    return reader.Value([&](const JsonRule& rule) {
      if (!rule.number) return false;
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return TooLarge();
      return rule.number(static_cast<int64_t>(value));
    });
  }
  bool number_float(double, const std::string& text) {
    return reader.Value([&](const JsonRule& rule) {
      if (!rule.number || text.front() == '-') return false;
      const bool is_whole = text.find_first_of(".eE") == std::string::npos;
      return is_whole ? TooLarge() : reader.Fail("the number is not whole");
    });
  }
  bool string(std::string& text) {
    return reader.Value([&](const JsonRule& rule) { return rule.string && rule.string(text); });
  }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool key(std::string& text) {
    if (reader.any_open_ == 0) reader.next_ = reader.open_.back()->member(text);
    return reader.any_open_ > 0 || reader.next_ != nullptr;
  }
  bool start_object(size_t) { return reader.Open(true); }
  bool start_array(size_t) { return reader.Open(false); }
  bool end_object() { return reader.Close(); }
  bool end_array() { return reader.Close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    return reader.Fail(fmt::format("no JSON at byte {}: {}", position - 1, ReasonIn(error.what())));
  }
  bool TooLarge() { return reader.Fail("the number does not fit 63 bits"); }

  JsonReader& reader;
};

bool JsonReader::Read(std::string_view text, const JsonRule& rule) {
  // The parser would take a NUL for the end of the text, and forgive a byte order mark.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return Fail(fmt::format("no JSON at byte {}: a NUL", nul));
  if (text.starts_with("\xEF\xBB\xBF")) return Fail("no JSON at byte 0: a byte order mark");
  next_ = &rule;
  JsonReaderEvents events{*this};
  return nlohmann::json::sax_parse(text.begin(), text.end(), &events);
}

bool JsonReader::Fail(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
  return false;
}

const JsonRule& JsonReader::TakeRule() {
  const JsonRule* rule = std::exchange(next_, nullptr);
  return rule != nullptr ? *rule : *open_.back()->element;
}

bool JsonReader::Open(bool is_object) {
  if (any_open_ > 0) return OpenAny();
  const JsonRule& rule = TakeRule();
  if (rule.any_depth >= 0) {
    any_depth_ = rule.any_depth;
    return OpenAny();
  }
  if (is_object ? rule.member == nullptr : rule.element == nullptr) return Fail(ExpectedBy(rule));
  open_.push_back(&rule);
  return true;
}

bool JsonReader::OpenAny() {
  return ++any_open_ <= any_depth_ || Fail("values are nested too deeply");
}

bool JsonReader::Close() {
  if (any_open_ > 0) return --any_open_ >= 0;
  const JsonRule& rule = *open_.back();
  open_.pop_back();
  return !rule.end || rule.end();
}

std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '\'' || c == '\\') {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result.push_back(c);
    }
  }
  if (text.size() > kLongest) result += fmt::format("... ({} bytes)", text.size());
  return result;
}

}  // namespace forebay
