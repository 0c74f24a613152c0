// Flat vectors of one AdamW problem in memory, for the kernel tests and as the judge of the
// out-of-core optimizer.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/optimizer/adamw.h"

namespace forebay {

struct AdamWVectors {
  AdamWVectors(Layout layout_in, bool gradient_is_bf16_in, int64_t num_elems)
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
  // Elements [first, first + num_elems) as a tile.
  AdamWTile Tile(int64_t first, int64_t num_elems, bool decay) {
    AdamWTile tile;
    tile.layout = layout;
    tile.num_elems = num_elems;
    tile.weight = layout == Layout::kBf16 ? static_cast<void*>(w16.data() + first)
                                          : static_cast<void*>(fp32.data() + first);
    tile.remainder = layout == Layout::kBf16 ? r16.data() + first : nullptr;
    tile.m = m.data() + first;
    tile.v = v.data() + first;
    tile.gradient = gradient_is_bf16 ? static_cast<const void*>(gradient_bf16.data() + first)
                                     : static_cast<const void*>(gradient_fp32.data() + first);
    tile.gradient_is_bf16 = gradient_is_bf16;
    tile.decay = decay;
    return tile;
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

// Equal bits, or both NaN: IEEE 754 leaves open which operand's NaN an operation hands on.
inline bool SameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

inline float BitsAsFloat(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

}  // namespace forebay
