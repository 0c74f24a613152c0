// The vector kernels by rule; UpdateRun (tile_update.h) is what callers want. Each updates whole
// blocks of kMomentBlockElems from the beginning of the run, and returns how many elements that
// was.
#pragma once

#include <cstdint>

#include "forebay/optimizer/kernels/rule_scalars.h"
#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {

int64_t UpdateAdamSimd(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run);
int64_t UpdateOtherSimd(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run);

}  // namespace forebay
