// Attention's tiles in shared memory, and products of them on tensor cores. A warp has 16 rows of
// its block's tile. Scores and sums lie in registers as mma.m16n8k16 leaves them: x[n][2 * half +
// i] is of row lane / 4 + 8 * half and column 8 * n + 2 * (lane % 4) + i.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "forebay/model/cuda/attention_kernels.h"

namespace forebay::cuda::attention {

constexpr int kTensorThreads = 128;
constexpr int kTensorRows = 64;  // of a block; of each of its warps:
constexpr int kWarpRows = 16;

template <typename T>
FOREBAY_DEVICE void Multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    MultiplyFp16(d, a, b);
  } else {
    MultiplyBf16(d, a, b);
  }
}
template <typename T>
FOREBAY_DEVICE uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) return PackFp16(low, high);
  return PackBf16(low, high);
}

// Elements from one row in shared memory to the next: eight more than it has, so that the rows of
// an 8x8 matrix lie in different banks.
template <int kDim>
constexpr int kStride = kDim + 8;

// Rows [first, first + kRows) of a matrix to shared memory, as a part of the thread's group of
// copies. Zeros for rows that are not in `there`, and for columns from head_dim on.
template <int kDim, int kRows, typename T>
FOREBAY_DEVICE void CopyRows(T* to, const T* from, int64_t row_stride, int head_dim, int first,
                             Range there) {
  if (head_dim % 8 == 0) {
    constexpr int kChunks = kDim / 8;
    for (int i = threadIdx.x; i < kRows * kChunks; i += kTensorThreads) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      const bool is_there = there.Has(first + row) && column < head_dim;
      CopyAsync16(to + row * kStride<kDim> + column,
                  is_there ? from + (first + row) * row_stride + column : from, is_there);
    }
    return;
  }
  // Rows that are aligned to a pair of elements alone.
  constexpr int kPairs = kDim / 2;
  for (int i = threadIdx.x; i < kRows * kPairs; i += kTensorThreads) {
    const int row = i / kPairs;
    const int column = i % kPairs * 2;
    const bool is_there = there.Has(first + row) && column < head_dim;
    *reinterpret_cast<uint32_t*>(to + row * kStride<kDim> + column) =
        is_there ? *reinterpret_cast<const uint32_t*>(from + (first + row) * row_stride + column)
                 : 0u;
  }
}

// A's fragment of 16 rows and the 16 columns from `column` on.
template <int kDim, typename T>
FOREBAY_DEVICE void LoadRows(uint32_t (&a)[4], const T* rows, int column) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(a, rows + lane % 16 * kStride<kDim> + column + lane / 16 * 8);
}

// s += a * columns^T, for the 16 elements of the head from 16 * chunk on: a is their fragment.
template <int kDim, int kColumns, typename T>
FOREBAY_DEVICE void AddScores(float (&s)[kColumns / 8][4], const uint32_t (&a)[4], const T* columns,
                              int chunk) {
  const int lane = threadIdx.x % 32;
  const T* const from =
      columns + (lane % 8 + lane / 16 * 8) * kStride<kDim> + chunk * 16 + lane / 8 % 2 * 8;
  FOREBAY_UNROLL
  for (int n = 0; n < kColumns / 16; ++n) {
    uint32_t b[4];
    LoadMatrices(b, from + n * 16 * kStride<kDim>);
    Multiply<T>(s[2 * n], a, {b[0], b[1]});
    Multiply<T>(s[2 * n + 1], a, {b[2], b[3]});
  }
}
// The same for the whole head, with rows in shared memory.
template <int kDim, int kColumns, typename T>
FOREBAY_DEVICE void AddScores(float (&s)[kColumns / 8][4], const T* rows, const T* columns) {
  FOREBAY_UNROLL
  for (int chunk = 0; chunk < kDim / 16; ++chunk) {
    uint32_t a[4];
    LoadRows<kDim>(a, rows, chunk * 16);
    AddScores<kDim, kColumns>(s, a, columns, chunk);
  }
}

// sums += weights * columns, for kOut elements of the head from `columns` on.
template <int kDim, int kColumns, int kOut, typename T>
FOREBAY_DEVICE void AddWeighted(float (&sums)[kOut / 8][4], const float (&weights)[kColumns / 8][4],
                                const T* columns) {
  const int lane = threadIdx.x % 32;
  const T* const from = columns + lane % 16 * kStride<kDim> + lane / 16 * 8;
  FOREBAY_UNROLL
  for (int n = 0; n < kColumns / 16; ++n) {
    const float(&low)[4] = weights[2 * n];
    const float(&high)[4] = weights[2 * n + 1];
    const uint32_t a[4] = {Pack<T>(low[0], low[1]), Pack<T>(low[2], low[3]),
                           Pack<T>(high[0], high[1]), Pack<T>(high[2], high[3])};
    FOREBAY_UNROLL
    for (int c = 0; c < kOut / 16; ++c) {
      uint32_t b[4];
      LoadMatrices<true>(b, from + n * 16 * kStride<kDim> + c * 16);
      Multiply<T>(sums[2 * c], a, {b[0], b[1]});
      Multiply<T>(sums[2 * c + 1], a, {b[2], b[3]});
    }
  }
}

// Row `row` of a matrix, from its element `first` on, of which this lane has sums[...][2 * half].
template <int kOut, typename T>
FOREBAY_DEVICE void StoreRow(T* row, int first, int head_dim, const float (&sums)[kOut / 8][4],
                             int half, float factor) {
  FOREBAY_UNROLL
  for (int n = 0; n < kOut / 8; ++n) {
    const int column = first + n * 8 + threadIdx.x % 4 * 2;
    if (column >= head_dim) continue;
    *reinterpret_cast<uint32_t*>(row + column) =
        Pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
  }
}

// Calls launch(element, integral_constant<head_dim in tiles>).
template <typename Launch>
cudaError_t ForTensorKernel(bool fp16, int head_dim, const Launch& launch) {
  const auto for_type = [&](auto element) {
    if (head_dim <= 16) return launch(element, std::integral_constant<int, 16>());
    if (head_dim <= 64) return launch(element, std::integral_constant<int, 64>());
    if (head_dim <= 80) return launch(element, std::integral_constant<int, 80>());
    if (head_dim <= 96) return launch(element, std::integral_constant<int, 96>());
    if (head_dim <= 128) return launch(element, std::integral_constant<int, 128>());
    return launch(element, std::integral_constant<int, 256>());
  };
  return fp16 ? for_type(__half()) : for_type(__nv_bfloat16());
}

}  // namespace forebay::cuda::attention
