// AdamW and Adam.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/optimizer/kernels/update_adam_simd.cc"
#include "hwy/foreach_target.h"
// After hwy/foreach_target.h.
#include "forebay/optimizer/kernels/update_simd-inl.h"
#include "forebay/optimizer/kernels/update_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {

template <bool kDecoupled>
struct AdamRule {
  static constexpr bool kHasM = true;
  static constexpr bool kHasV = true;

  HWY_INLINE VF Moments(VF g, [[maybe_unused]] VF p, VF& m, VF& v, VF& root) const {
    const DF d;
    if constexpr (!kDecoupled) g = hn::Add(g, hn::Mul(hn::Set(d, s.l2), p));
    m = hn::Add(m, hn::Mul(hn::Sub(g, m), hn::Set(d, s.one_minus_beta1)));
    v = hn::Add(hn::Mul(v, hn::Set(d, s.beta2)),
                hn::Mul(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g));
    root = hn::Sqrt(v);
    return m;
  }
  HWY_INLINE VF Weight(VF p, VF along, VF root) const {
    const DF d;
    if constexpr (kDecoupled) p = hn::Mul(p, hn::Set(d, s.keep));
    const VF denominator =
        hn::Add(hn::Mul(root, hn::Set(d, s.inverse_sqrt_correction2)), hn::Set(d, s.eps));
    return hn::Sub(p, hn::Mul(hn::Set(d, s.step_size), hn::Div(along, denominator)));
  }
  const RuleScalars s;
};

int64_t UpdateAdam(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run) {
  return config.kind == OptimizerKind::kAdamW ? UpdateWith(s, run, AdamRule<true>{s})
                                              : UpdateWith(s, run, AdamRule<false>{s});
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay {

HWY_EXPORT(UpdateAdam);

int64_t UpdateAdamSimd(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run) {
  return HWY_DYNAMIC_DISPATCH(UpdateAdam)(config, s, run);
}

}  // namespace forebay
#endif  // HWY_ONCE
