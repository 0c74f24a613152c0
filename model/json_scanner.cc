#include "forebay/model/json_scanner.h"

#include <limits>

#include "fmt/format.h"

namespace forebay {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

void AppendUtf8(uint32_t code, std::string* value) {
  const auto put = [&](uint32_t byte) { value->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

bool JsonScanner::Fail(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
  return false;
}

char JsonScanner::Peek() {
  while (offset_ < text_.size()) {
    const char c = text_[offset_];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
    ++offset_;
  }
  return '\0';
}

bool JsonScanner::Consume(char expected) {
  if (Peek() != expected || offset_ >= text_.size())
    return Fail(fmt::format("'{}' is expected", expected));
  ++offset_;
  return true;
}

bool JsonScanner::End() {
  Peek();
  return offset_ == text_.size() || Fail("there are bytes after the end of the value");
}

bool JsonScanner::Literal(std::string_view word) {
  if (text_.substr(offset_, word.size()) != word) return Fail("a value is expected");
  offset_ += word.size();
  return true;
}

bool JsonScanner::SkipNull() {
  return Peek() == 'n' && Literal("null");
}

bool JsonScanner::NonNegativeInt(int64_t* value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (!IsDigit(Peek())) return Fail("a whole number without sign is expected");
  const size_t start = offset_;
  int64_t result = 0;
  while (offset_ < text_.size() && IsDigit(text_[offset_])) {
    const int digit = text_[offset_] - '0';
    if (result > (kMost - digit) / 10) return Fail("the number does not fit 63 bits");
    result = result * 10 + digit;
    ++offset_;
  }
  if (text_[start] == '0' && offset_ - start > 1) return Fail("a number may not start with 0");
  const char next = offset_ < text_.size() ? text_[offset_] : '\0';
  if (next == '.' || next == 'e' || next == 'E') return Fail("the number is not whole");
  *value = result;
  return true;
}

bool JsonScanner::SkipNumber() {
  const auto skip_digits = [&] {
    const size_t start = offset_;
    while (offset_ < text_.size() && IsDigit(text_[offset_])) ++offset_;
    return offset_ > start || Fail("a digit is expected");
  };
  if (text_[offset_] == '-') ++offset_;
  const size_t start = offset_;
  if (!skip_digits()) return false;
  if (text_[start] == '0' && offset_ - start > 1) return Fail("a number may not start with 0");
  if (offset_ < text_.size() && text_[offset_] == '.') {
    ++offset_;
    if (!skip_digits()) return false;
  }
  if (offset_ < text_.size() && (text_[offset_] == 'e' || text_[offset_] == 'E')) {
    ++offset_;
    if (offset_ < text_.size() && (text_[offset_] == '+' || text_[offset_] == '-')) ++offset_;
    return skip_digits();
  }
  return true;
}

bool JsonScanner::SkipValue(int max_depth) {
  switch (Peek()) {
    case '{':
      if (max_depth == 0) return Fail("values are nested too deeply");
      return Object([&](const std::string&) { return SkipValue(max_depth - 1); });
    case '[':
      if (max_depth == 0) return Fail("values are nested too deeply");
      return Array([&] { return SkipValue(max_depth - 1); });
    case '"': {
      std::string ignored;
      return String(&ignored);
    }
    case 't':
      return Literal("true");
    case 'f':
      return Literal("false");
    case 'n':
      return Literal("null");
    default:
      if (offset_ < text_.size() && (text_[offset_] == '-' || IsDigit(text_[offset_])))
        return SkipNumber();
      return Fail("a value is expected");
  }
}

bool JsonScanner::String(std::string* value) {
  if (Peek() != '"') return Fail("a string is expected");
  ++offset_;
  value->clear();
  while (true) {
    if (offset_ >= text_.size()) return Fail("the string has no end");
    const auto byte = static_cast<unsigned char>(text_[offset_]);
    if (byte == '"') {
      ++offset_;
      return true;
    }
    if (byte < 0x20) return Fail("there is a control character in a string");
    if (byte == '\\') {
      if (!Escape(value)) return false;
    } else if (byte < 0x80) {
      value->push_back(static_cast<char>(byte));
      ++offset_;
    } else if (!Utf8(value)) {
      return false;
    }
  }
}

bool JsonScanner::HexDigits(uint32_t* code) {
  *code = 0;
  for (int i = 0; i < 4; ++i, ++offset_) {
    const char c = offset_ < text_.size() ? text_[offset_] : '\0';
    uint32_t digit = 0;
    if (IsDigit(c)) {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A' + 10);
    } else {
      return Fail("four hexadecimal digits are expected after \\u");
    }
    *code = *code << 4 | digit;
  }
  return true;
}

bool JsonScanner::Escape(std::string* value) {
  ++offset_;  // the backslash
  const char kind = offset_ < text_.size() ? text_[offset_] : '\0';
  ++offset_;
  switch (kind) {
    case '"':
    case '\\':
    case '/':
      value->push_back(kind);
      return true;
    case 'b':
      value->push_back('\b');
      return true;
    case 'f':
      value->push_back('\f');
      return true;
    case 'n':
      value->push_back('\n');
      return true;
    case 'r':
      value->push_back('\r');
      return true;
    case 't':
      value->push_back('\t');
      return true;
    case 'u':
      break;
    default:
      return Fail("there is an unknown escape in a string");
  }
  uint32_t code = 0;
  if (!HexDigits(&code)) return false;
  if (code >= 0xDC00 && code < 0xE000) return Fail("half of a surrogate pair stands alone");
  if (code >= 0xD800 && code < 0xDC00) {
    uint32_t low = 0;
    if (text_.substr(offset_, 2) != "\\u") return Fail("half of a surrogate pair stands alone");
    offset_ += 2;
    if (!HexDigits(&low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return Fail("half of a surrogate pair stands alone");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  AppendUtf8(code, value);
  return true;
}

// One character of two to four bytes: no overlong forms, no surrogates, nothing above U+10FFFF (RFC
// 3629).
bool JsonScanner::Utf8(std::string* value) {
  const auto first = static_cast<unsigned char>(text_[offset_]);
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || offset_ + length > text_.size())
    return Fail("the text is not valid UTF-8");
  uint32_t code = first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text_[offset_ + i]);
    if ((byte & 0xC0) != 0x80) return Fail("the text is not valid UTF-8");
    code = code << 6 | (byte & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF)
    return Fail("the text is not valid UTF-8");
  value->append(text_.substr(offset_, length));
  offset_ += length;
  return true;
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
