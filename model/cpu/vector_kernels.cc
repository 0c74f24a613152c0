#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/model/cpu/vector_kernels.cc"
#include "hwy/foreach_target.h"  // must come before hwy/highway.h
#include "hwy/highway.h"
//
#include "forebay/model/cpu/for_each-inl.h"
#include "forebay/model/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

// Weight: Bf16, Fp16Bits or float.
template <typename Weight>
void WidenFrom(const Weight* in, int64_t count, float* out) {
  ForEach(count,
          [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(LoadWeights(d, in + i), d, out + i); });
}

void Widen(const void* in, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kBF16:
      return WidenFrom(static_cast<const Bf16*>(in), count, out);
    case DType::kF16:
      return WidenFrom(static_cast<const Fp16Bits*>(in), count, out);
    case DType::kF32:
      return WidenFrom(static_cast<const float*>(in), count, out);
  }
}

void RoundToFp16(const float* in, int64_t count, float* out) {
  ForEach(count, [&](auto d, int64_t i)
                     HWY_ATTR { hn::StoreU(RoundedToFp16(d, hn::LoadU(d, in + i)), d, out + i); });
}

void AddRoundedToFp16(const float* x, int64_t count, float* y) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), RoundedToFp16(d, hn::LoadU(d, x + i))), d, y + i);
  });
}

// The upper halves of fp32 bit patterns, rounded to nearest even, in u32 lanes.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundedUpperHalf(D /* d */, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, quiet, rounded);
}

template <class D>
HWY_INLINE void StoreNarrow(D d, hn::Vec<D> value, Bf16* out) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  // Lanes are below 65536, so the saturation of this narrowing never acts.
  const auto halves = hn::BitCast(di, RoundedUpperHalf(d, value));
  hn::StoreU(hn::DemoteTo(d16, halves), d16, out);
}

void NarrowToBf16(const float* in, int64_t count, Bf16* out) {
  ForEach(count,
          [&](auto d, int64_t i) HWY_ATTR { StoreNarrow(d, hn::LoadU(d, in + i), out + i); });
}

void NarrowScaledToBf16(const float* in, float factor, int64_t count, Bf16* out) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    StoreNarrow(d, hn::Mul(hn::LoadU(d, in + i), hn::Set(d, factor)), out + i);
  });
}

void Add(const float* x, int64_t count, float* y) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  });
}

template <typename Weight>
void AddFrom(const Weight* x, int64_t count, float* y) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), LoadWeights(d, x + i)), d, y + i);
  });
}

void AddWeights(const void* weights, DType dtype, int64_t count, float* y) {
  switch (dtype) {
    case DType::kBF16:
      return AddFrom(static_cast<const Bf16*>(weights), count, y);
    case DType::kF16:
      return AddFrom(static_cast<const Fp16Bits*>(weights), count, y);
    case DType::kF32:
      return AddFrom(static_cast<const float*>(weights), count, y);
  }
}

void Scale(float factor, int64_t count, float* y) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), hn::Set(d, factor)), d, y + i);
  });
}

float Dot(const float* x, const float* y, int64_t count) {
  return SumOver(count, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    return hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  });
}

void AddScaled(float factor, const float* x, int64_t count, float* y) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::cpu::kernels {

HWY_EXPORT(Widen);
HWY_EXPORT(RoundToFp16);
HWY_EXPORT(AddRoundedToFp16);
HWY_EXPORT(NarrowToBf16);
HWY_EXPORT(NarrowScaledToBf16);
HWY_EXPORT(Add);
HWY_EXPORT(AddWeights);
HWY_EXPORT(Scale);
HWY_EXPORT(Dot);
HWY_EXPORT(AddScaled);

void Widen(const void* in, DType dtype, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(Widen)(in, dtype, count, out);
}
void RoundToFp16(const float* in, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(RoundToFp16)(in, count, out);
}
void AddRoundedToFp16(const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddRoundedToFp16)(x, count, y);
}
void NarrowToBf16(const float* in, int64_t count, Bf16* out) {
  HWY_DYNAMIC_DISPATCH(NarrowToBf16)(in, count, out);
}
void NarrowScaledToBf16(const float* in, float factor, int64_t count, Bf16* out) {
  HWY_DYNAMIC_DISPATCH(NarrowScaledToBf16)(in, factor, count, out);
}
void Add(const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(Add)(x, count, y);
}
void AddWeights(const void* weights, DType dtype, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddWeights)(weights, dtype, count, y);
}
void Scale(float factor, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(Scale)(factor, count, y);
}
float Dot(const float* x, const float* y, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Dot)(x, y, count);
}
void AddScaled(float factor, const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(factor, x, count, y);
}

}  // namespace forebay::cpu::kernels
#endif  // HWY_ONCE
