// How sums over rows are cut, and what of that lies in scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace forebay::cuda {

// So many blocks of rows at most, added in order.
inline constexpr int64_t kMostPartialSums = 128;
inline constexpr int64_t kLeastPartialRows = 64;

constexpr int64_t PartialRows(int64_t rows) {
  return std::max(kLeastPartialRows, (rows + kMostPartialSums - 1) / kMostPartialSums);
}
constexpr int64_t NumPartialSums(int64_t rows) {
  return (rows + PartialRows(rows) - 1) / PartialRows(rows);
}

inline constexpr int64_t kScratchAlignment = 256;
// A part of `size_bytes` takes so many.
constexpr int64_t AlignedScratch(int64_t size_bytes) {
  return (size_bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace forebay::cuda
