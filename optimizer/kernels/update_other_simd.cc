// Adagrad, Lion and SGD.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/optimizer/kernels/update_other_simd.cc"
#include "hwy/foreach_target.h"
// After hwy/foreach_target.h.
#include "forebay/optimizer/kernels/update_simd-inl.h"
#include "forebay/optimizer/kernels/update_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {

struct AdagradRule {
  static constexpr bool kHasM = false;
  static constexpr bool kHasV = true;

  HWY_INLINE VF Moments(VF g, VF p, VF& /*m*/, VF& v, VF& root) const {
    g = hn::Add(g, hn::Mul(hn::Set(DF(), s.l2), p));
    v = hn::Add(v, hn::Mul(g, g));
    root = hn::Sqrt(v);
    return g;
  }
  HWY_INLINE VF Weight(VF p, VF along, VF root) const {
    const DF d;
    const VF step = hn::Div(along, hn::Add(root, hn::Set(d, s.eps)));
    return hn::Sub(p, hn::Mul(hn::Set(d, s.step_size), step));
  }
  const RuleScalars s;
};

struct LionRule {
  static constexpr bool kHasM = true;
  static constexpr bool kHasV = false;

  HWY_INLINE VF Moments(VF g, VF /*p*/, VF& m, VF& /*v*/, VF& /*root*/) const {
    const DF d;
    const VF c =
        hn::Add(hn::Mul(m, hn::Set(d, s.beta1)), hn::Mul(g, hn::Set(d, s.one_minus_beta1)));
    m = hn::Add(hn::Mul(m, hn::Set(d, s.beta2)), hn::Mul(g, hn::Set(d, s.one_minus_beta2)));
    const VF one = hn::Set(d, 1.0f);
    return hn::Sub(hn::IfThenElseZero(hn::Gt(c, hn::Zero(d)), one),
                   hn::IfThenElseZero(hn::Lt(c, hn::Zero(d)), one));
  }
  HWY_INLINE VF Weight(VF p, VF along, VF /*root*/) const {
    const DF d;
    return hn::Sub(hn::Mul(p, hn::Set(d, s.keep)), hn::Mul(hn::Set(d, s.step_size), along));
  }
  const RuleScalars s;
};

template <bool kHasMomentum>
struct SgdRule {
  static constexpr bool kHasM = kHasMomentum;
  static constexpr bool kHasV = false;

  HWY_INLINE VF Moments(VF g, VF p, [[maybe_unused]] VF& m, VF& /*v*/, VF& /*root*/) const {
    const DF d;
    g = hn::Add(g, hn::Mul(hn::Set(d, s.l2), p));
    if constexpr (kHasMomentum) {
      const VF momentum = hn::Set(d, s.momentum);
      m = hn::Add(hn::Mul(m, momentum), g);
      g = nesterov ? hn::Add(g, hn::Mul(m, momentum)) : m;
    }
    return g;
  }
  HWY_INLINE VF Weight(VF p, VF along, VF /*root*/) const {
    return hn::Sub(p, hn::Mul(hn::Set(DF(), s.step_size), along));
  }
  const RuleScalars s;
  const bool nesterov;
};

int64_t UpdateOther(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run) {
  if (config.kind == OptimizerKind::kAdagrad) return UpdateWith(s, run, AdagradRule{s});
  if (config.kind == OptimizerKind::kLion) return UpdateWith(s, run, LionRule{s});
  return HasFirstMoment(config) ? UpdateWith(s, run, SgdRule<true>{s, config.nesterov})
                                : UpdateWith(s, run, SgdRule<false>{s, false});
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay {

HWY_EXPORT(UpdateOther);

int64_t UpdateOtherSimd(const OptimizerConfig& config, const RuleScalars& s, const TileRun& run) {
  return HWY_DYNAMIC_DISPATCH(UpdateOther)(config, s, run);
}

}  // namespace forebay
#endif  // HWY_ONCE
