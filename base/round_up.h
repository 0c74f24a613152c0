// Whole multiples.
#pragma once

#include <cstdint>

namespace forebay {

// Requires: value >= 0, multiple > 0.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace forebay
