// Sums over the rows of a matrix whose elements a Term makes, in an order that the shape alone
// decides: blocks of rows go to scratch memory, and are then added in order.
//
// A Term has kSums, and Add<kCount>(row, column, sums), which adds its kSums terms of kCount
// columns.
#pragma once

#include "forebay/base/errors.h"
#include "forebay/model/cuda/launch.h"
#include "forebay/model/cuda/scratch_parts.h"

namespace forebay::cuda {

template <int kSums>
struct SumTargets {
  float* at[kSums];
};

inline constexpr int kSumColumns = 32;  // threads side by side
inline constexpr int kSumLanes = 8;     // each takes every eighth row

// Block (x, y) sums block of rows y. It is written to row y of the targets, or added to it.
template <typename Term, int kCount>
__global__ void ColumnSumsKernel(Term term, int64_t rows, int64_t rows_of_block, int64_t width,
                                 SumTargets<Term::kSums> targets, bool adds) {
  constexpr int kColumns = kSumColumns * kCount;
  FOREBAY_SHARED(float, of_lanes, [kSumLanes][kColumns]);
  const int lane = static_cast<int>(threadIdx.x) / kSumColumns;
  const int place = static_cast<int>(threadIdx.x) % kSumColumns;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t column = first_column + place * kCount;
  const int64_t begin = blockIdx.y * rows_of_block;
  const int64_t end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  float sums[Term::kSums][kCount] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + lane; row < end; row += kSumLanes) {
      term.template Add<kCount>(row, column, sums);
    }
  }
#pragma unroll
  for (int k = 0; k < Term::kSums; ++k) {
    if (k > 0) __syncthreads();  // the sums before have been read
#pragma unroll
    for (int j = 0; j < kCount; ++j) of_lanes[lane][j * kSumColumns + place] = sums[k][j];
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kColumns; at += kSumColumns * kSumLanes) {
      const int64_t to = first_column + at % kSumColumns * kCount + at / kSumColumns;
      if (to >= width) continue;
      float sum = of_lanes[0][at];
      for (int i = 1; i < kSumLanes; ++i) sum += of_lanes[i][at];
      float* const target = targets.at[k] + blockIdx.y * width + to;
      *target = adds ? *target + sum : sum;
    }
  }
}

// Rows of partial sums, as terms.
template <int kNumSums>
struct PartialTerm {
  static constexpr int kSums = kNumSums;
  SumTargets<kSums> from;
  int64_t width;

  template <int kCount>
  FOREBAY_DEVICE void Add(int64_t row, int64_t column, float (&sums)[kSums][kCount]) const {
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      float values[kCount];
      Load(from.at[k] + row * width + column, values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[k][j] += values[j];
    }
  }
};

template <int kCount, typename Term>
absl::Status LaunchColumnSums(Context& context, const char* operation, const Term& term,
                              int64_t rows, int64_t rows_of_block, int64_t width,
                              const SumTargets<Term::kSums>& targets, bool adds) {
  return Launch(context, operation, &ColumnSumsKernel<Term, kCount>,
                Grid(CeilDiv(width, kSumColumns * kCount), CeilDiv(rows, rows_of_block)),
                kSumColumns * kSumLanes, term, rows, rows_of_block, width, targets, adds);
}

// targets [width] each += the sums over `rows`. `wide`: the term may read kCount columns at a time,
// where the width is a multiple of it. Takes kSums * NumPartialSums(rows) * width floats of
// scratch.
template <int kCount, typename Term>
absl::Status AddColumnSums(Context& context, const char* operation, const Term& term, bool wide,
                           int64_t rows, int64_t width, const SumTargets<Term::kSums>& targets) {
  if (rows == 0) return absl::OkStatus();
  const int64_t num_partial = NumPartialSums(rows);
  SumTargets<Term::kSums> partial = targets;
  if (num_partial > 1) {
    ScratchParts scratch(context);
    for (float*& at : partial.at) at = scratch.Take<float>(num_partial * width);
  }
  // Wide accesses of a narrow matrix would leave most threads without a column.
  const bool reads_wide = wide && width % kCount == 0 && width >= kSumColumns * kCount;
  const bool adds = num_partial == 1;
  FOREBAY_RETURN_IF_ERROR(reads_wide
                              ? LaunchColumnSums<kCount>(context, operation, term, rows,
                                                         PartialRows(rows), width, partial, adds)
                              : LaunchColumnSums<1>(context, operation, term, rows,
                                                    PartialRows(rows), width, partial, adds));
  if (num_partial == 1) return absl::OkStatus();
  return LaunchColumnSums<1>(context, operation, PartialTerm<Term::kSums>{partial, width},
                             num_partial, num_partial, width, targets, true);
}

}  // namespace forebay::cuda
