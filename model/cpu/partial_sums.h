// Sums over rows that are the same bits for every number of threads: each block of rows sums for
// itself, then the blocks are added in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "forebay/model/cpu/context_impl.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {

inline constexpr int64_t kMaxPartialSums = 64;
inline constexpr size_t kMaxSummedVectors = 2;
// Rows of one block: 64, or more where that would be over kMaxPartialSums blocks.
int64_t PartialSumRows(int64_t rows);

// Calls row_task(row, partial) for every row; `partial[v]` is a vector [width] to add to, and the
// sum of them over all rows is added to sums[v].
template <typename RowTask>
void SumOverRowBlocks(Context::Impl& impl, int64_t rows, int64_t width,
                      std::span<float* const> sums, const RowTask& row_task) {
  const int64_t block_rows = PartialSumRows(rows);
  const int64_t num_blocks = (rows + block_rows - 1) / block_rows;
  const int64_t stride = static_cast<int64_t>(sums.size()) * width;
  float* partials = impl.shared.Get<float>(Slot::kPartialSums, num_blocks * stride);
  impl.ParallelBlocks(rows, block_rows, [&](int64_t begin, int64_t end) {
    float* own = partials + begin / block_rows * stride;
    std::fill_n(own, stride, 0.0f);
    std::array<float*, kMaxSummedVectors> vectors{};
    for (size_t v = 0; v < sums.size(); ++v) vectors[v] = own + static_cast<int64_t>(v) * width;
    for (int64_t row = begin; row < end; ++row) {
      row_task(row, std::span<float* const>(vectors.data(), sums.size()));
    }
  });
  for (size_t v = 0; v < sums.size(); ++v) {
    for (int64_t block = 0; block < num_blocks; ++block) {
      kernels::Add(partials + block * stride + static_cast<int64_t>(v) * width, width, sums[v]);
    }
  }
}

}  // namespace forebay::cpu
