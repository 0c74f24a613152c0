// Fp16ToFloat and FloatToFp16 of base/bfloat16.h over vectors. Highway's own conversions truncate
// on some targets. Included once per instruction set.
#if defined(FOREBAY_BASE_FP16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOREBAY_BASE_FP16_INL_H_
#undef FOREBAY_BASE_FP16_INL_H_
#else
#define FOREBAY_BASE_FP16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::fp16::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// `halves`: bits in the low half of each lane.
template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<hn::RebindToUnsigned<D>> halves) {
  const hn::RebindToUnsigned<D> du;
  const auto sign = hn::ShiftLeft<16>(hn::And(halves, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(halves, hn::Set(du, 0x7fffu)));
  const auto is_normal_or_more = hn::Set(du, 0x400u << 13);
  const auto largest_finite = hn::Set(du, (0x7c00u << 13) - 1);
  // 2^-14 with the mantissa below it, less 2^-14: mantissa * 2^-24.
  const auto least = hn::Set(du, 113u << 23);
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(magnitude, least)), hn::BitCast(d, least));
  const auto exponent = hn::IfThenElse(hn::Gt(magnitude, largest_finite), hn::Set(du, 224u << 23),
                                       hn::Set(du, 112u << 23));
  const auto normal = hn::Add(magnitude, exponent);
  const auto result =
      hn::IfThenElse(hn::Lt(magnitude, is_normal_or_more), hn::BitCast(du, subnormal), normal);
  return hn::BitCast(d, hn::Or(result, sign));
}

// Rounds to nearest, ties to even; overflow becomes infinity. The bits lie in the low half of each
// lane.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Narrow(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto half = hn::Set(d, 0.5f);
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(du, half));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto rounded = hn::Add(magnitude, hn::Add(hn::Set(du, 0xfffu), odd));
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), subnormal, normal);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fefffu)), hn::Set(du, 0x7c00u), result);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7e00u), result);
  return hn::Or(result, sign);
}

}  // namespace forebay::fp16::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
