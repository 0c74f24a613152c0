// Loops over rows in vectors, and over what is left in single lanes of the same code. Included once
// per instruction set.
#if defined(FOREBAY_MODEL_CPU_FOR_EACH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_MODEL_CPU_FOR_EACH_INL_H_
#undef FOREBAY_MODEL_CPU_FOR_EACH_INL_H_
#else
#define FOREBAY_MODEL_CPU_FOR_EACH_INL_H_
#endif

#include <cstdint>

#include "forebay/base/bfloat16.h"
#include "forebay/base/fp16-inl.h"
#include "forebay/model/cpu/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using LaneTag = hn::CappedTag<float, 1>;

// Lanes of fp32 from fp32, bf16 or fp16 in memory.
template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const Bf16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadWeights(D d, const Fp16Bits* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return fp16::HWY_NAMESPACE::Widen(d, hn::PromoteTo(d32, bits));
}
// `value` as it is after a visit to fp16.
template <class D>
HWY_INLINE hn::Vec<D> RoundedToFp16(D d, hn::Vec<D> value) {
  return fp16::HWY_NAMESPACE::Widen(d, fp16::HWY_NAMESPACE::Narrow(d, value));
}

// body(d, i) for vectors at i, then for the lanes that fill no vector.
template <class Body>
HWY_INLINE void ForEach(int64_t count, const Body& body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(d, i);
  for (; i < count; ++i) body(LaneTag(), i);
}

// The sum that term(d, i, sum) adds to `sum`: four vectors of partial sums, combined pairwise, then
// the lanes left over. The order depends on `count` and the vector length alone.
template <class Term>
HWY_INLINE float SumOver(int64_t count, const Term& term) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = term(d, i, sum0);
    sum1 = term(d, i + lanes, sum1);
    sum2 = term(d, i + 2 * lanes, sum2);
    sum3 = term(d, i + 3 * lanes, sum3);
  }
  for (; i + lanes <= count; i += lanes) sum0 = term(d, i, sum0);
  const auto total = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  const LaneTag lane;
  auto rest = hn::Zero(lane);
  for (; i < count; ++i) rest = term(lane, i, rest);
  return hn::GetLane(hn::SumOfLanes(d, total)) + hn::GetLane(rest);
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
