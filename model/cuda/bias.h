// The gradient of a bias.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

// dbias [out] += the sums over the rows of dy [rows, out].
absl::Status AddBiasGradient(Context& context, const void* dy, int64_t rows, int64_t out,
                             float* dbias);

}  // namespace forebay::cuda
