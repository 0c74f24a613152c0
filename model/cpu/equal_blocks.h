// Equal parts of a size, and how many are enough.
#pragma once

#include <cstdint>

namespace forebay::cpu {

// Tasks that keep many cores busy.
inline constexpr int64_t kEnoughTasks = 12;

constexpr int64_t DivideRoundingUp(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// `size` in the fewest equal blocks of at most `largest`, each a multiple of `unit` (but for the
// last, and where that makes them larger).
constexpr int64_t EqualBlocks(int64_t size, int64_t largest, int64_t unit) {
  const int64_t count = DivideRoundingUp(size, largest);
  return DivideRoundingUp(DivideRoundingUp(size, count), unit) * unit;
}

}  // namespace forebay::cpu
