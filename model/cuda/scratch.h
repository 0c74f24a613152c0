// The memory that operators on a GPU need beside their operands: for plans too, in builds without
// CUDA code.
#pragma once

#include <cstdint>

#include "forebay/base/dtype.h"

namespace forebay::cuda {

// The library of matrix products gets so many.
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{32} << 20;

// Bytes of scratch that these operators need for models of this shape, of `max_tokens` at a time.
int64_t ScratchBytes(DType dtype, int64_t max_tokens, int64_t hidden, int64_t intermediate,
                     int64_t vocab, int64_t heads, int64_t head_dim);

}  // namespace forebay::cuda
