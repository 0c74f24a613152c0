// Fields of a JSON object that was read from a disk: what each must be, and how a message says so.
#pragma once

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

inline bool IsIntegerIn(const Json& value, int64_t least, int64_t most) {
  const std::optional<int64_t> number = IntegerOf(value);
  return number.has_value() && *number >= least && *number <= most;
}

}  // namespace forebay
