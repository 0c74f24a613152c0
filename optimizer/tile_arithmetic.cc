#include "forebay/optimizer/tile_arithmetic.h"

#include "forebay/base/check.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {

double TileArithmetic::RoundGradient(const float* from, DType dtype, std::byte* to) const {
  return RoundAndSumSquares(from, kNormBlockElems, dtype, to);
}

RuleArithmetic::RuleArithmetic(const OptimizerConfig& config) : config_(config) {
  FOREBAY_CHECK(config.eps > 0);
}

void RuleArithmetic::Update(const UpdateScalars& scalars, const TileRun& run) const {
  UpdateRun(config_, scalars, run);
}

}  // namespace forebay
