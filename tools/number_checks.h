// Checks of numbers that CLI11 lets through: its ranges accept nan, its unsigned numbers wrap
// around.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "fmt/format.h"

namespace forebay {

// For CLI::Option::check: "" where `text` is a number that uint64_t holds, else what is wrong.
inline std::string CheckSeed(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return "";
  return fmt::format("'{}' is no whole number from 0 to 2^64 - 1", text);
}

// The same for a number from `least` to `most`.
inline std::function<std::string(const std::string&)> CheckReal(double least, double most) {
  return [=](const std::string& text) -> std::string {
    double value = std::nan("");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (whole && value >= least && value <= most) return "";
    return fmt::format("'{}' is no number from {} to {}", text, least, most);
  };
}

}  // namespace forebay
