// Operands of a norm's gradient. x, dy: [rows, width]; mean (nullptr: RMSNorm's) and inverse:
// [rows].
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

struct NormGradient {
  const void* x;
  const float* mean;
  const float* inverse;
  const void* dy;
  int64_t rows, width;
};

// dweight [width] += sums over rows of dy * n, dbias (nullptr: RMSNorm's) += those of dy.
absl::Status AddNormWeightGradients(Context& context, const NormGradient& norm, float* dweight,
                                    float* dbias);

}  // namespace forebay::cuda
