// What an optimizer computes, apart from how its tiles come and go: the seam between the pipeline
// (offloaded_optimizer.h: holding, reading ahead, writing behind) and the formulas (update_rule.h).
// swap-bench has one that computes nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {

// Thread-compatible: the pipeline calls it for disjoint elements in parallel. Nothing here fails.
class TileArithmetic {
 public:
  virtual ~TileArithmetic() = default;

  // One update of a run of elements with one set of constants. The planes are updated in place.
  virtual void Update(const UpdateScalars& scalars, const TileRun& run) const = 0;

  // Writes kNormBlockElems gradients to `to`, rounded to `dtype`, and returns the sum of squares of
  // what was written. The default is what every optimizer wants.
  virtual double RoundGradient(const float* from, DType dtype, std::byte* to) const;
};

// The production one.
class RuleArithmetic : public TileArithmetic {
 public:
  // Requires: config.eps > 0 (else 0/0 where a gradient is zero).
  explicit RuleArithmetic(const OptimizerConfig& config);
  void Update(const UpdateScalars& scalars, const TileRun& run) const override;

 private:
  const OptimizerConfig config_;
};

}  // namespace forebay
