// What an optimizer computes, apart from how its tiles come and go: the seam between the pipeline
// (offloaded_adamw.h: holding, reading ahead, writing behind) and the formulas. Another optimizer
// over the same planes is another implementation; swap-bench has one that computes nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forebay/optimizer/adamw.h"

namespace forebay {

// Thread-compatible: the pipeline calls it for disjoint elements in parallel. Nothing here fails.
class TileArithmetic {
 public:
  virtual ~TileArithmetic() = default;

  // One step on a run of elements with one decay setting. The planes are updated in place.
  virtual void Update(const AdamWStep& step, const AdamWTile& run) const = 0;

  // Writes kNormBlockElems gradients to `to`, rounded to bf16 or as they are, and returns the sum
  // of squares of what was written. The default is what every optimizer wants.
  virtual double RoundGradient(const float* from, bool to_bf16, std::byte* to) const;
};

// The production one.
class AdamWArithmetic : public TileArithmetic {
 public:
  // Requires: config.eps > 0 (else 0/0 where a gradient is zero).
  explicit AdamWArithmetic(const AdamWConfig& config);
  void Update(const AdamWStep& step, const AdamWTile& run) const override;

 private:
  const AdamWConfig config_;
};

}  // namespace forebay
