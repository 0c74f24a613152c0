// Flat vectors of one AdamW problem in memory, in the formats of the exact layouts: as the judge of
// the out-of-core optimizer, and for the tests on devices.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/optimizer/tile_update.h"
#include "forebay/swap/layout.h"

namespace forebay {

struct RunVectors {
  RunVectors(Layout layout_in, bool gradient_is_bf16_in, int64_t num_elems)
      : layout(layout_in),
        gradient_is_bf16(gradient_is_bf16_in),
        w16(num_elems),
        r16(num_elems),
        fp32(num_elems),
        m(num_elems),
        v(num_elems),
        gradient_bf16(num_elems),
        gradient_fp32(num_elems) {}

  int64_t size() const { return static_cast<int64_t>(m.size()); }
  void SetMaster(int64_t i, float value) {
    const SplitMaster split = Split(value);
    w16[i] = split.w16;
    r16[i] = split.r16;
    fp32[i] = value;
  }
  float Master(int64_t i) const { return layout == Layout::kBf16 ? Join(w16[i], r16[i]) : fp32[i]; }
  // Rounded to bf16 where that is the hand-over dtype.
  void SetGradient(int64_t i, float value) {
    gradient_bf16[i] = FloatToBf16(value);
    gradient_fp32[i] = value;
  }
  float Gradient(int64_t i) const {
    return gradient_is_bf16 ? Bf16ToFloat(gradient_bf16[i]) : gradient_fp32[i];
  }
  // Elements [first, first + num_elems) as a run.
  TileRun Run(int64_t first, int64_t num_elems, double weight_decay) {
    TileRun run;
    run.num_elems = num_elems;
    run.first_elem = first;
    if (layout == Layout::kBf16) {
      run.weights = WeightFormat::kSplitBf16;
      run.weight = w16.data() + first;
      run.remainder = r16.data() + first;
    } else {
      run.weights = WeightFormat::kFp32;
      run.weight = fp32.data() + first;
    }
    run.m = m.data() + first;
    run.v = v.data() + first;
    run.gradient = gradient_is_bf16 ? static_cast<const void*>(gradient_bf16.data() + first)
                                    : static_cast<const void*>(gradient_fp32.data() + first);
    run.gradient_dtype = gradient_is_bf16 ? DType::kBF16 : DType::kF32;
    run.weight_decay = weight_decay;
    return run;
  }

  Layout layout;
  bool gradient_is_bf16;
  std::vector<Bf16> w16;
  std::vector<int16_t> r16;
  std::vector<float> fp32;
  std::vector<float> m, v;
  std::vector<Bf16> gradient_bf16;
  std::vector<float> gradient_fp32;
};

}  // namespace forebay
