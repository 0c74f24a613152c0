#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/model/cpu/softmax_kernels.cc"
#include "hwy/foreach_target.h"  // must come before hwy/highway.h
#include "hwy/highway.h"
//
#include "forebay/model/cpu/for_each-inl.h"
#include "forebay/model/cpu/kernels.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

// exp(x - shift). Highway's Exp makes zero of NaN, which would hide a diverged model.
template <class D>
HWY_INLINE hn::Vec<D> ShiftedExp(D d, const float* x, float shift) {
  const auto exponent = hn::Sub(hn::LoadU(d, x), hn::Set(d, shift));
  return hn::IfThenElse(hn::IsNaN(exponent), exponent, hn::Exp(d, exponent));
}

float Max(const float* x, int64_t count) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto max0 = lowest;
  auto max1 = lowest;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    max0 = hn::Max(max0, hn::LoadU(d, x + i));
    max1 = hn::Max(max1, hn::LoadU(d, x + i + lanes));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  for (; i < count; ++i) result = HWY_MAX(result, x[i]);
  return result;
}

float SumExp(const float* x, float shift, int64_t count) {
  return SumOver(count, [&](auto d, int64_t i, auto sum)
                            HWY_ATTR { return hn::Add(sum, ShiftedExp(d, x + i, shift)); });
}

float ExpInPlace(float shift, int64_t count, float* x) {
  return SumOver(count, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto value = ShiftedExp(d, x + i, shift);
    hn::StoreU(value, d, x + i);
    return hn::Add(sum, value);
  });
}

void ScaledExpInPlace(float shift, float factor, int64_t count, float* x) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto value = ShiftedExp(d, x + i, shift);
    hn::StoreU(hn::Mul(value, hn::Set(d, factor)), d, x + i);
  });
}

void SoftmaxGradient(const float* p, float delta, float factor, int64_t count, float* g) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, g + i), hn::Set(d, delta));
    const auto scaled = hn::Mul(hn::LoadU(d, p + i), hn::Set(d, factor));
    hn::StoreU(hn::Mul(scaled, centred), d, g + i);
  });
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::cpu::kernels {

HWY_EXPORT(Max);
HWY_EXPORT(SumExp);
HWY_EXPORT(ExpInPlace);
HWY_EXPORT(ScaledExpInPlace);
HWY_EXPORT(SoftmaxGradient);

float Max(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Max)(x, count);
}
float SumExp(const float* x, float shift, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(x, shift, count);
}
float ExpInPlace(float shift, int64_t count, float* x) {
  return HWY_DYNAMIC_DISPATCH(ExpInPlace)(shift, count, x);
}
void ScaledExpInPlace(float shift, float factor, int64_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(ScaledExpInPlace)(shift, factor, count, x);
}
void SoftmaxGradient(const float* p, float delta, float factor, int64_t count, float* g) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(p, delta, factor, count, g);
}

}  // namespace forebay::cpu::kernels
#endif  // HWY_ONCE
