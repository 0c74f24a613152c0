// Numbers in the files of /proc and of cgroups.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace forebay {

// The number that begins at `text`; nullopt for "max" and other words.
inline std::optional<int64_t> LeadingNumber(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() && end != text.data() + begin ? std::optional(value) : std::nullopt;
}

// The number behind `key` at the beginning of a line ("MemAvailable:", "inactive_file").
inline std::optional<int64_t> NumberOf(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return LeadingNumber(line.substr(key.size()));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return std::nullopt;
}

}  // namespace forebay
