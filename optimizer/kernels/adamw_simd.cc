// AdamW for every instruction set that Highway knows, chosen at run time: one pass over memory, in
// place. Every operation is the reference's (adamw_scalars.h), so the bits are too. The planes are
// not written with non-temporal stores: each line was just read, so an ordinary store costs no
// extra traffic.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/optimizer/kernels/adamw_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "forebay/optimizer/adamw.h"
#include "forebay/optimizer/kernels/adamw_scalars.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

HWY_INLINE VF LoadGradient(DF d, const float* from) {
  return hn::LoadU(d, from);
}
HWY_INLINE VF LoadGradient(DF d, const uint16_t* from) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> dh;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
}

// Where the fp32 master weight is read from and written to.
struct Fp32Weights {
  float* weight;
  HWY_INLINE VF Load(DF d, int64_t i) const { return hn::LoadU(d, weight + i); }
  HWY_INLINE void Store(DF d, int64_t i, VF p) const { hn::StoreU(p, d, weight + i); }
};

// As Join and Split of base/bfloat16.h.
struct SplitWeights {
  uint16_t* w16;
  int16_t* r16;
  HWY_INLINE VF Load(DF d, int64_t i) const {
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<uint16_t, DF> duh;
    const hn::Rebind<int16_t, DF> dih;
    const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(duh, w16 + i)));
    const auto low = hn::BitCast(du, hn::PromoteTo(di, hn::LoadU(dih, r16 + i)));
    return hn::BitCast(d, hn::Add(high, low));
  }
  HWY_INLINE void Store(DF d, int64_t i, VF p) const {
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<uint16_t, DF> duh;
    const hn::Rebind<int16_t, DF> dih;
    (void)d;
    const auto bits = hn::BitCast(du, p);
    const auto high = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000u)));
    const auto low = hn::BitCast(di, hn::Sub(bits, hn::ShiftLeft<16>(high)));
    // Both fit their 16 bits, so the saturation of DemoteTo never acts.
    hn::StoreU(hn::DemoteTo(duh, hn::BitCast(di, high)), duh, w16 + i);
    hn::StoreU(hn::DemoteTo(dih, low), dih, r16 + i);
  }
};

// Updates whole vectors and returns how many elements that was.
template <typename Weights, typename Gradient>
int64_t UpdateWholeVectors(const AdamWScalars& s, const Weights& weights, const AdamWTile& tile,
                           const Gradient* HWY_RESTRICT gradient) {
  const DF d;
  const VF gradient_scale = hn::Set(d, s.gradient_scale);
  const VF keep = hn::Set(d, s.keep);
  const VF one_minus_beta1 = hn::Set(d, s.one_minus_beta1);
  const VF beta2 = hn::Set(d, s.beta2);
  const VF one_minus_beta2 = hn::Set(d, s.one_minus_beta2);
  const VF inverse_sqrt_correction2 = hn::Set(d, s.inverse_sqrt_correction2);
  const VF eps = hn::Set(d, s.eps);
  const VF step_size = hn::Set(d, s.step_size);
  const int64_t num_lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + num_lanes <= tile.num_elems; i += num_lanes) {
    const VF g = hn::Mul(LoadGradient(d, gradient + i), gradient_scale);
    VF m = hn::LoadU(d, tile.m + i);
    VF v = hn::LoadU(d, tile.v + i);
    m = hn::Add(m, hn::Mul(hn::Sub(g, m), one_minus_beta1));
    v = hn::Add(hn::Mul(v, beta2), hn::Mul(hn::Mul(one_minus_beta2, g), g));
    const VF denominator = hn::Add(hn::Mul(hn::Sqrt(v), inverse_sqrt_correction2), eps);
    const VF p = hn::Mul(weights.Load(d, i), keep);
    weights.Store(d, i, hn::Sub(p, hn::Mul(step_size, hn::Div(m, denominator))));
    hn::StoreU(m, d, tile.m + i);
    hn::StoreU(v, d, tile.v + i);
  }
  return i;
}

template <typename Weights>
int64_t UpdateWholeVectors(const AdamWScalars& s, const Weights& weights, const AdamWTile& tile) {
  return tile.gradient_is_bf16
             ? UpdateWholeVectors(s, weights, tile, static_cast<const uint16_t*>(tile.gradient))
             : UpdateWholeVectors(s, weights, tile, static_cast<const float*>(tile.gradient));
}

int64_t UpdateTile(const AdamWScalars& s, const AdamWTile& tile) {
  if (tile.layout == Layout::kFp32) {
    return UpdateWholeVectors(s, Fp32Weights{static_cast<float*>(tile.weight)}, tile);
  }
  return UpdateWholeVectors(s, SplitWeights{static_cast<uint16_t*>(tile.weight), tile.remainder},
                            tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay {

HWY_EXPORT(UpdateTile);

void AdamWSimd(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile) {
  const AdamWScalars scalars(config, step, tile.decay);
  const int64_t num_done = HWY_DYNAMIC_DISPATCH(UpdateTile)(scalars, tile);
  // What is left is less than a vector: the reference has the same bits.
  AdamWRef(config, step, Part(tile, num_done, tile.num_elems - num_done, tile.decay));
}

}  // namespace forebay
#endif  // HWY_ONCE
