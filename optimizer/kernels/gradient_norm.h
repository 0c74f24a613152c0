// Rounds a finished gradient to the dtype it is handed over in and sums the squares of the rounded
// values, in an order that depends on element indexes alone. So the norm has the same bits for all
// instruction sets, threads and placements.
#pragma once

#include <cstdint>

#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"

namespace forebay {

// Sums are formed per block of a layer's flat vector and then added in the order of the blocks. A
// tile of any size is a whole number of blocks.
inline constexpr int64_t kNormBlockElems = kLayerAlignElems;

// Sum of squares of `num_elems` gradients after rounding to `dtype` (nearest, ties to even; kF32:
// as they are), which are written to `rounded`. Within the block 16 partial sums, by index modulo
// 16, are added in order at the end. Products of two such values are exact in double, so fused
// multiply-add changes nothing. The sum is finite exactly when all rounded values are (fp32's
// largest square is far below double's range). Requires: num_elems is a multiple of 16; `rounded`
// has room for as many elements and is aligned to them. Buffers do not overlap.
double RoundAndSumSquares(const float* gradient, int64_t num_elems, DType dtype, void* rounded);

// The same of a gradient that is of `dtype` already: it is copied, bit for bit.
double CopyAndSumSquares(const void* gradient, int64_t num_elems, DType dtype, void* copied);

// The reference that defines the bits.
double RoundAndSumSquaresRef(const float* gradient, int64_t num_elems, DType dtype, void* rounded);

}  // namespace forebay
