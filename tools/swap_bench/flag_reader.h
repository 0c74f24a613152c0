// Turns the texts of flags into values, and keeps what is wrong with any, so that it is all said at
// once.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"

namespace forebay {

// A whole text as a number; nullopt: it is none.
template <typename T>
std::optional<T> Whole(std::string_view text) {
  T value = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads flags one after another and keeps what is wrong with any.
class FlagReader {
 public:
  template <typename T>
  void Take(const std::string& name, const absl::StatusOr<T>& value, T& into) {
    if (value.ok()) {
      into = *value;
    } else {
      Problem(name, MessageOf(value.status()));
    }
  }
  template <typename T>
  void TakeNumber(const std::string& name, const std::string& text, T& into) {
    const std::optional<T> value = Whole<T>(text);
    if (value.has_value()) {
      into = *value;
    } else {
      Problem(name, fmt::format("'{}' is not a whole number that fits", text));
    }
  }
  // One of a few words.
  template <typename T>
  void TakeWord(const std::string& name, const std::string& text,
                const std::vector<std::pair<std::string, T>>& words, T& into) {
    std::string allowed;
    for (const auto& [word, value] : words) {
      if (word == text) {
        into = value;
        return;
      }
      allowed += (allowed.empty() ? "" : " or ") + word;
    }
    Problem(name, fmt::format("'{}'; allowed: {}", text, allowed));
  }
  void Problem(const std::string& name, const std::string& what) {
    Complain(fmt::format("--{}: {}", name, what));
  }
  // About what is no flag.
  void Complain(const std::string& what) {
    text_ += fmt::format("{}{}", text_.empty() ? "" : "\n  ", what);
  }
  absl::Status status() const { return text_.empty() ? absl::OkStatus() : UsageError(text_); }

 private:
  std::string text_;
};

// The engines as --engine spells them.
inline std::vector<std::pair<std::string, EngineKind>> EngineWords() {
  std::vector<std::pair<std::string, EngineKind>> words;
  for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kIoUring, EngineKind::kLibaio,
                                EngineKind::kThreads, EngineKind::kBuffered}) {
    words.emplace_back(NameOf(kind), kind);
  }
  return words;
}

}  // namespace forebay
