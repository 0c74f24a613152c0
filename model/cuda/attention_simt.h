// Attention without tensor cores: tiles in shared memory as fp32, whatever the elements are. A
// block's four warps have some rows each. For scores a lane has one column of the tile, for sums
// every 32nd element of the head.
#pragma once

#include <cstdint>
#include <type_traits>

#include "forebay/model/cuda/attention_kernels.h"
#include "forebay/model/cuda/elements.h"

namespace forebay::cuda::attention {

constexpr int kSimtThreads = 128;
// A multiprocessor has registers for so many. Left to itself, nvcc spills some for one block more.
constexpr int kSimtBlocks = 3;

// Sizes that stay under the 64 KB of shared memory that every card has, for both passes.
template <int kDim>
struct SimtTiles {
  static constexpr int kRows = kDim <= 64 ? 32 : kDim <= 128 ? 16 : 8;
  static constexpr int kColumns = kDim <= 128 ? 32 : 16;
  static constexpr int kWarpRows = kRows * 32 / kSimtThreads;
  // Where a tile has fewer columns than a warp has lanes, the warp does several rows at a time.
  static constexpr int kRowsAtOnce = 32 / kColumns;
  static constexpr int kLaneRows = kWarpRows / kRowsAtOnce;
  static constexpr int kStride = kDim + 4;  // floats; lanes' float4 lie in different banks
  static constexpr int kLaneDims = kDim / 32;
};

template <int kDim, int kRows, typename T>
FOREBAY_DEVICE void CopyFloats(float* to, const T* from, int64_t row_stride, int head_dim,
                               int first, Range there) {
  for (int i = threadIdx.x; i < kRows * kDim; i += kSimtThreads) {
    const int row = i / kDim;
    const int column = i % kDim;
    const bool is_there = there.Has(first + row) && column < head_dim;
    to[row * SimtTiles<kDim>::kStride + column] =
        is_there ? ToFloat(from[(first + row) * row_stride + column]) : 0.0f;
  }
}

// s[i] = row * column, for the rows of this lane, from `rows` on. Behind head_dim are zeros.
template <int kDim>
FOREBAY_DEVICE void SimtScores(float (&s)[SimtTiles<kDim>::kLaneRows], const float* rows,
                               const float* column, int head_dim) {
  using Tiles = SimtTiles<kDim>;
  FOREBAY_UNROLL
  for (int i = 0; i < Tiles::kLaneRows; ++i) s[i] = 0.0f;
  for (int d = 0; d < head_dim; d += 4) {
    const float4 b = *reinterpret_cast<const float4*>(column + d);
    FOREBAY_UNROLL
    for (int i = 0; i < Tiles::kLaneRows; ++i) {
      const float4 a =
          *reinterpret_cast<const float4*>(rows + i * Tiles::kRowsAtOnce * Tiles::kStride + d);
      s[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, s[i]))));
    }
  }
}

// sums[row] += weights[row] * columns: `weights` are those of the warp's rows, in shared memory.
template <int kDim>
FOREBAY_DEVICE void SimtAddWeighted(
    float (&sums)[SimtTiles<kDim>::kWarpRows][SimtTiles<kDim>::kLaneDims], const float* weights,
    const float* columns) {
  using Tiles = SimtTiles<kDim>;
  const float* const from = columns + threadIdx.x % 32;
  for (int j = 0; j < Tiles::kColumns; j += 4) {
    float4 w[Tiles::kWarpRows];
    FOREBAY_UNROLL
    for (int row = 0; row < Tiles::kWarpRows; ++row) {
      w[row] = *reinterpret_cast<const float4*>(weights + row * Tiles::kColumns + j);
    }
    FOREBAY_UNROLL
    for (int c = 0; c < Tiles::kLaneDims; ++c) {
      const float x[4] = {
          from[(j + 0) * Tiles::kStride + 32 * c], from[(j + 1) * Tiles::kStride + 32 * c],
          from[(j + 2) * Tiles::kStride + 32 * c], from[(j + 3) * Tiles::kStride + 32 * c]};
      FOREBAY_UNROLL
      for (int row = 0; row < Tiles::kWarpRows; ++row) {
        float& sum = sums[row][c];
        sum = fmaf(w[row].x, x[0], sum);
        sum = fmaf(w[row].y, x[1], sum);
        sum = fmaf(w[row].z, x[2], sum);
        sum = fmaf(w[row].w, x[3], sum);
      }
    }
  }
}

template <int kLaneDims, typename T>
FOREBAY_DEVICE void StoreFloats(T* row, int head_dim, const float (&sums)[kLaneDims],
                                float factor) {
  FOREBAY_UNROLL
  for (int c = 0; c < kLaneDims; ++c) {
    const int column = static_cast<int>(threadIdx.x) % 32 + 32 * c;
    if (column < head_dim) Round(sums[c] * factor, row[column]);
  }
}

// Calls launch(element, integral_constant<head_dim in tiles>).
template <typename Launch>
cudaError_t ForSimtKernel(DType dtype, int head_dim, const Launch& launch) {
  const auto for_type = [&](auto element) {
    if (head_dim <= 32) return launch(element, std::integral_constant<int, 32>());
    if (head_dim <= 64) return launch(element, std::integral_constant<int, 64>());
    if (head_dim <= 128) return launch(element, std::integral_constant<int, 128>());
    return launch(element, std::integral_constant<int, 256>());
  };
  if (dtype == DType::kBF16) return for_type(Bf16Element());
  if (dtype == DType::kF16) return for_type(Fp16Element());
  return for_type(0.0f);
}

}  // namespace forebay::cuda::attention
