// Fields of a JSON object that was read from a disk: what each must be, and how a message says so.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "forebay/base/json.h"

namespace forebay {

constexpr int64_t kMostSteps = int64_t{1} << 62;  // more than any run has

struct JsonField {
  const char* name;
  bool (*is_valid)(const Json& value);
  const char* expected;
};

// As IntegerOf, and of a float that is a whole number: other programs write 32768.0.
inline std::optional<int64_t> WholeNumberOf(const Json& value) {
  constexpr double kMost = 9007199254740992.0;  // 2^53: no float beyond it is sure to be whole
  if (!value.is_number_float()) return IntegerOf(value);
  const double number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > kMost) return std::nullopt;
  return static_cast<int64_t>(number);
}

inline bool IsIntegerIn(const Json& value, int64_t least, int64_t most) {
  const std::optional<int64_t> number = IntegerOf(value);
  return number.has_value() && *number >= least && *number <= most;
}

}  // namespace forebay
