// One update of a run of elements: unscale, clip, moments, decay, step, rounding, 16-bit weight, in
// one pass over memory. The scalar reference defines the bits; the vector kernels and the GPU's
// must produce the same ones.
#pragma once

#include <cstdint>

#include "forebay/base/dtype.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/swap/tiles/layout.h"

namespace forebay {

// Moments in less than fp32 are rounded by a dither. MomentFormat::kInt8: the code of a first
// moment m is m * k / scale + w rounded to the nearest whole number, k just below 127, signed; of a
// second moment v it is that of y = sqrt(v), y * k / scale - w, k just below 255, unsigned and at
// least 1 where v is not 0. The scale is the block's largest magnitude rounded up to bf16, or 0
// below 2^-100, with codes 0. The dither w in [-1/2, 1/2) makes rounding unbiased: it moves by the
// golden ratio from step to step, so an element's roundings are spread evenly over the steps.
// Independent rounding would let codes wander by the square root of the steps, and rounding to
// nearest would freeze v, whose decay of 0.1 % a step is less than half a code.

// The planes of a run of elements with one set of constants, updated in place. Kernels need no
// alignment, but where moments are less than fp32 (with weights of kSplitBf16 alone) runs begin at
// multiples of kMomentBlockElems in their layer, and of kInt8 they end there or with the plane.
// Buffers must not overlap.
struct TileRun {
  int64_t num_elems = 0;
  int64_t first_elem = 0;  // in the layer's flat vector; keys the rounding, with `layer`
  int layer = 0;

  WeightFormat weights = WeightFormat::kSplitBf16;
  void* weight = nullptr;        // bf16, fp16 or fp32
  int16_t* remainder = nullptr;  // kSplitBf16
  float* master = nullptr;       // kFp16

  MomentFormat moments = MomentFormat::kFp32;
  void* m = nullptr;            // float, Bf16 or int8_t; nullptr where the optimizer has none
  void* v = nullptr;            // float, Bf16 or uint8_t; the same
  uint16_t* m_scale = nullptr;  // kInt8: bf16, one for each block
  uint16_t* v_scale = nullptr;

  const void* gradient = nullptr;
  DType gradient_dtype = DType::kBF16;  // kBF16, kF16 or kF32

  // The settings of the run's parameter group.
  double lr_scale = 1;  // times UpdateScalars::lr
  double weight_decay = 0;
};

// Elements [first_elem, first_elem + num_elems) of `run`, from its beginning.
TileRun PartOf(const TileRun& run, int64_t first_elem, int64_t num_elems);

// Never fail; gradients that are not finite are the caller's to reject. Thread-compatible: disjoint
// runs may be updated in parallel. Elements that are zero with a zero gradient stay zero. Requires:
// the moments that the optimizer has; eps > 0 where it uses it (else 0/0 where a gradient is zero).
void UpdateRunRef(const OptimizerConfig& config, const UpdateScalars& scalars, const TileRun& run);
// The fastest kernel for this CPU; same bits as UpdateRunRef.
void UpdateRun(const OptimizerConfig& config, const UpdateScalars& scalars, const TileRun& run);

}  // namespace forebay
