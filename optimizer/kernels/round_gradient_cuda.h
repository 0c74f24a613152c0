// Rounds gradients on a GPU and sums their squares, with the bits of RoundAndSumSquares.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/base/dtype.h"

namespace forebay {

// Enqueues it on `cuda_stream` (a cudaStream_t); called by Stream::Launch, as UpdateRunCuda is. All
// addresses are device memory: `num_elems` gradients, as many of `dtype`, and a sum of squares for
// each kNormBlockElems of them. Borrowed until the stream has done it; they do not overlap.
// EnvironmentError when the launch fails, or when this forebay was built without CUDA. Requires:
// num_elems is a multiple of kNormBlockElems.
absl::Status RoundGradientCuda(const float* gradient, int64_t num_elems, DType dtype, void* rounded,
                               double* block_squares, void* cuda_stream);

}  // namespace forebay
