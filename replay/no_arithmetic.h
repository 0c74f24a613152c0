// The arithmetic of an optimizer left out: tiles go back as they came, so that what is timed is the
// disk. For measurements alone.
#pragma once

#include <cstring>

#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/tile_arithmetic.h"

namespace forebay {

class NoArithmetic : public TileArithmetic {
 public:
  void Update(const UpdateScalars& /*scalars*/, const TileRun& /*run*/) const override {}
  // As many bytes as a rounded gradient has, which are as hard to compress.
  double RoundGradient(const float* from, DType dtype, std::byte* to) const override {
    std::memcpy(to, from, static_cast<size_t>(kNormBlockElems * SizeOf(dtype)));
    return 0;
  }
};

}  // namespace forebay
