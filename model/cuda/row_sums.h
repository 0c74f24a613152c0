// Sums over the elements of a row, by the threads that share it: a warp, or a whole block.
#pragma once

#include "forebay/device/kernel.h"
#include "forebay/device/ptx.h"

namespace forebay::cuda {

inline constexpr int kRowBlockThreads = 256;
inline constexpr int kWarpThreads = 32;

// Rows narrower than this are a warp's: a block would mostly wait at its barriers.
inline constexpr int64_t kNarrowRow = 1024;

// The row of the running thread, and its place among those that share it.
template <int kRowThreads>
FOREBAY_DEVICE int64_t RowOfThread() {
  constexpr int kRowsOfBlock = kRowBlockThreads / kRowThreads;
  return static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kRowThreads;
}
template <int kRowThreads>
FOREBAY_DEVICE int PlaceInRow() {
  return static_cast<int>(threadIdx.x) % kRowThreads;
}

// The same for all threads of the row, which all take part.
template <int kRowThreads>
FOREBAY_DEVICE float SumOfRow(float value) {
  static_assert(kRowThreads == kWarpThreads || kRowThreads == kRowBlockThreads);
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if constexpr (kRowThreads != kWarpThreads) {
    constexpr int kWarps = kRowThreads / kWarpThreads;
    FOREBAY_SHARED(float, of_warps, [kWarps]);
    __syncthreads();  // the sum before this one has been read
    if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = value;
    __syncthreads();
    value = of_warps[0];
    for (int warp = 1; warp < kWarps; ++warp) value += of_warps[warp];
  }
  return value;
}

}  // namespace forebay::cuda
