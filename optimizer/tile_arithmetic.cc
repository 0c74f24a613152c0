#include "forebay/optimizer/tile_arithmetic.h"

#include "forebay/base/check.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {

double TileArithmetic::RoundGradient(const float* from, bool to_bf16, std::byte* to) const {
  return to_bf16 ? RoundAndSumSquares(from, kNormBlockElems, reinterpret_cast<Bf16*>(to))
                 : CopyAndSumSquares(from, kNormBlockElems, reinterpret_cast<float*>(to));
}

RuleArithmetic::RuleArithmetic(const OptimizerConfig& config) : config_(config) {
  FOREBAY_CHECK(config.eps > 0);
}

void RuleArithmetic::Update(const UpdateScalars& scalars, const TileRun& run) const {
  UpdateRun(config_, scalars, run);
}

}  // namespace forebay
