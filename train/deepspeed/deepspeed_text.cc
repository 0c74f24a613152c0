#include "forebay/train/deepspeed/deepspeed_text.h"

#include <cctype>
#include <cstddef>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr size_t kNowhere = std::string::npos;

bool IsOfWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Copies a text as strict JSON. Comments become blanks, so that lines and columns stay what they
// are.
class StrictCopy {
 public:
  explicit StrictCopy(std::string_view text) : text_(text) {}

  std::string Make() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const std::string_view two = text_.substr(at_, 2);
      if (c == '"' || c == '\'') {
        comma_ = kNowhere;
        CopyString(c);
      } else if (c == '#' || two == "//") {
        Blank(text_.find('\n', at_));
      } else if (two == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        Blank(end == kNowhere ? end : end + 2);
      } else if (IsOfWord(c)) {
        comma_ = kNowhere;
        CopyWord();
      } else {
        CopyMark(c);
      }
    }
    return copy_;
  }

 private:
  void CopyString(char quote) {
    copy_ += '"';
    for (++at_; at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        if (text_[at_] != '\'') copy_ += '\\';
      } else if (text_[at_] == '"') {
        copy_ += '\\';
      }
      copy_ += text_[at_];
    }
    if (at_ < text_.size() && text_[at_] == quote) {
      copy_ += '"';
      ++at_;
    }
  }

  void Blank(size_t end) {
    for (; at_ < text_.size() && at_ < end; ++at_) copy_ += text_[at_] == '\n' ? '\n' : ' ';
  }

  void CopyWord() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsOfWord(text_[at_])) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    copy_ += word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word;
  }

  void CopyMark(char c) {
    // A comma that nothing follows is one too many.
    if ((c == '}' || c == ']') && comma_ != kNowhere) copy_[comma_] = ' ';
    if (c == ',') {
      comma_ = copy_.size();
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      comma_ = kNowhere;
    }
    copy_ += c;
    ++at_;
  }

  std::string_view text_;
  std::string copy_;
  size_t at_ = 0;
  size_t comma_ = kNowhere;  // in the copy: the last one, while nothing has followed it
};

}  // namespace

absl::StatusOr<Json> ParseDeepSpeedText(std::string_view text, std::string_view source) {
  absl::StatusOr<Json> document = ParseJson(StrictCopy(text).Make(), source);
  if (!document.ok()) return UsageError("--ds_config: " + MessageOf(document.status()));
  if (!document->is_object()) {
    return UsageError(
        fmt::format("--ds_config: {} is no object, and a configuration is one", source));
  }
  return document;
}

}  // namespace forebay
