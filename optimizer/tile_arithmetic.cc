#include "forebay/optimizer/tile_arithmetic.h"

#include "forebay/base/check.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {

double TileArithmetic::RoundGradient(const float* from, bool to_bf16, std::byte* to) const {
  return to_bf16 ? RoundAndSumSquares(from, kNormBlockElems, reinterpret_cast<Bf16*>(to))
                 : CopyAndSumSquares(from, kNormBlockElems, reinterpret_cast<float*>(to));
}

AdamWArithmetic::AdamWArithmetic(const AdamWConfig& config) : config_(config) {
  FOREBAY_CHECK(config.eps > 0);
}

void AdamWArithmetic::Update(const AdamWStep& step, const AdamWTile& run) const {
  AdamWSimd(config_, step, run);
}

}  // namespace forebay
