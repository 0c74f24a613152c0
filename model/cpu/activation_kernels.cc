#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/model/cpu/activation_kernels.cc"
#include "hwy/foreach_target.h"  // must come before hwy/highway.h
#include "hwy/highway.h"
//
#include "forebay/model/cpu/for_each-inl.h"
#include "forebay/model/cpu/kernels.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

// 1 / (1 + exp(-x)). Highway's Exp is undefined where the result overflows; beyond 88 the sigmoid
// is 0 in fp32 anyway.
template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  const auto exponent = hn::Min(hn::Neg(x), hn::Set(d, 88.0f));
  return hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
}

void SwiGlu(const float* gate, const float* up, int64_t count, float* out) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(hn::Mul(g, Sigmoid(d, g)), hn::LoadU(d, up + i)), d, out + i);
  });
}

// silu(g) = g * s with s = sigmoid(g); its derivative is s * (1 + g * (1 - s)).
void SwiGluGradient(const float* gate, const float* up, const float* dout, int64_t count,
                    float* dgate, float* dup) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto g = hn::LoadU(d, gate + i);
    const auto u = hn::LoadU(d, up + i);
    const auto upstream = hn::LoadU(d, dout + i);
    const auto s = Sigmoid(d, g);
    const auto slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
    hn::StoreU(hn::Mul(hn::Mul(upstream, u), slope), d, dgate + i);
    hn::StoreU(hn::Mul(upstream, hn::Mul(g, s)), d, dup + i);
  });
}

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

template <class D>
HWY_INLINE hn::Vec<D> GeluGate(D d, hn::Vec<D> x) {
  const auto square = hn::Mul(x, x);
  const auto inner = hn::MulAdd(hn::Mul(square, hn::Set(d, kCubic)), x, x);
  return Sigmoid(d, hn::Mul(inner, hn::Set(d, kTwiceSqrtTwoOverPi)));
}

void GeluTanh(const float* x, int64_t count, float* out) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(hn::Mul(v, GeluGate(d, v)), d, out + i);
  });
}

// With s = sigmoid(2u): gelu' = s + x * s * (1 - s) * 2u'.
void GeluTanhGradient(const float* x, const float* dout, int64_t count, float* dx) {
  ForEach(count, [&](auto d, int64_t i) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto v = hn::LoadU(d, x + i);
    const auto s = GeluGate(d, v);
    const auto inner_slope = hn::MulAdd(hn::Mul(v, v), hn::Set(d, 3.0f * kCubic), one);
    const auto exponent_slope = hn::Mul(inner_slope, hn::Set(d, kTwiceSqrtTwoOverPi));
    const auto gate_slope = hn::Mul(hn::Mul(s, hn::Sub(one, s)), exponent_slope);
    hn::StoreU(hn::Mul(hn::LoadU(d, dout + i), hn::MulAdd(v, gate_slope, s)), d, dx + i);
  });
}

void RotateHeads(const float* cosines, const float* sines, float sign, int64_t half, int64_t heads,
                 float* x) {
  for (int64_t head = 0; head < heads; ++head) {
    float* low = x + head * 2 * half;
    float* high = low + half;
    ForEach(half, [&](auto d, int64_t i) HWY_ATTR {
      const auto cosine = hn::LoadU(d, cosines + i);
      const auto sine = hn::Mul(hn::LoadU(d, sines + i), hn::Set(d, sign));
      const auto a = hn::LoadU(d, low + i);
      const auto b = hn::LoadU(d, high + i);
      hn::StoreU(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)), d, low + i);
      hn::StoreU(hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine)), d, high + i);
    });
  }
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::cpu::kernels {

HWY_EXPORT(SwiGlu);
HWY_EXPORT(SwiGluGradient);
HWY_EXPORT(GeluTanh);
HWY_EXPORT(GeluTanhGradient);
HWY_EXPORT(RotateHeads);

void SwiGlu(const float* gate, const float* up, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(SwiGlu)(gate, up, count, out);
}
void SwiGluGradient(const float* gate, const float* up, const float* dout, int64_t count,
                    float* dgate, float* dup) {
  HWY_DYNAMIC_DISPATCH(SwiGluGradient)(gate, up, dout, count, dgate, dup);
}
void GeluTanh(const float* x, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(GeluTanh)(x, count, out);
}
void GeluTanhGradient(const float* x, const float* dout, int64_t count, float* dx) {
  HWY_DYNAMIC_DISPATCH(GeluTanhGradient)(x, dout, count, dx);
}
void RotateHeads(const float* cosines, const float* sines, float sign, int64_t half, int64_t heads,
                 float* x) {
  HWY_DYNAMIC_DISPATCH(RotateHeads)(cosines, sines, sign, half, heads, x);
}

}  // namespace forebay::cpu::kernels
#endif  // HWY_ONCE
