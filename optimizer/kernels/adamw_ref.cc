// The reference that defines the bits of every AdamW kernel. Also the vector kernel's tail, so it
// must stay exact.
#include <cmath>
#include <cstddef>

#include "forebay/base/bfloat16.h"
#include "forebay/optimizer/adamw.h"
#include "forebay/optimizer/kernels/adamw_scalars.h"

namespace forebay {
namespace {

float UpdateElement(const AdamWScalars& s, float p, float& m, float& v, float gradient) {
  const float g = gradient * s.gradient_scale;
  m = m + (g - m) * s.one_minus_beta1;
  v = v * s.beta2 + (s.one_minus_beta2 * g) * g;
  const float denominator = std::sqrt(v) * s.inverse_sqrt_correction2 + s.eps;
  return p * s.keep - s.step_size * (m / denominator);
}

}  // namespace

AdamWTile Part(const AdamWTile& tile, int64_t first_elem, int64_t num_elems, bool decay) {
  AdamWTile part = tile;
  part.num_elems = num_elems;
  part.weight = static_cast<std::byte*>(tile.weight) + first_elem * WeightBytesPerElem(tile.layout);
  if (tile.remainder != nullptr) part.remainder = tile.remainder + first_elem;
  part.m = tile.m + first_elem;
  part.v = tile.v + first_elem;
  part.gradient =
      static_cast<const std::byte*>(tile.gradient) + first_elem * (tile.gradient_is_bf16 ? 2 : 4);
  part.decay = decay;
  return part;
}

void AdamWRef(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile) {
  const AdamWScalars scalars(config, step, tile.decay);
  for (int64_t i = 0; i < tile.num_elems; ++i) {
    const float gradient = tile.gradient_is_bf16
                               ? Bf16ToFloat(static_cast<const Bf16*>(tile.gradient)[i])
                               : static_cast<const float*>(tile.gradient)[i];
    if (tile.layout == Layout::kBf16) {
      Bf16& w16 = static_cast<Bf16*>(tile.weight)[i];
      const SplitMaster split = Split(
          UpdateElement(scalars, Join(w16, tile.remainder[i]), tile.m[i], tile.v[i], gradient));
      w16 = split.w16;
      tile.remainder[i] = split.r16;
    } else {
      float& p = static_cast<float*>(tile.weight)[i];
      p = UpdateElement(scalars, p, tile.m[i], tile.v[i], gradient);
    }
  }
}

}  // namespace forebay
