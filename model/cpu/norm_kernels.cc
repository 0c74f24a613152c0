#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/model/cpu/norm_kernels.cc"
#include "hwy/foreach_target.h"  // must come before hwy/highway.h
#include "hwy/highway.h"
//
#include "forebay/model/cpu/for_each-inl.h"
#include "forebay/model/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

float RmsNormRow(const float* x, const float* weight, double eps, int64_t width, float* y) {
  const float sum_of_squares = SumOver(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    return hn::MulAdd(v, v, sum);
  });
  const float inverse_rms =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(sum_of_squares) / width + eps));
  ForEach(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto normal = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse_rms));
    hn::StoreU(hn::Mul(normal, hn::LoadU(d, weight + i)), d, y + i);
  });
  return inverse_rms;
}

void RmsNormRowGradient(const float* x, const float* weight, float inverse_rms, const float* dy,
                        int64_t width, float* dx, bool accumulate_dx, float* dweight) {
  const float projection = SumOver(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i));
    return hn::MulAdd(g, hn::LoadU(d, x + i), sum);
  });
  const float pull = projection * inverse_rms * inverse_rms / static_cast<float>(width);
  ForEach(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto r = hn::Set(d, inverse_rms);
    const auto v = hn::LoadU(d, x + i);
    const auto upstream = hn::LoadU(d, dy + i);
    hn::StoreU(hn::MulAdd(hn::Mul(upstream, v), r, hn::LoadU(d, dweight + i)), d, dweight + i);
    const auto g = hn::Mul(upstream, hn::LoadU(d, weight + i));
    const auto gradient = hn::Mul(r, hn::NegMulAdd(v, hn::Set(d, pull), g));
    hn::StoreU(accumulate_dx ? hn::Add(hn::LoadU(d, dx + i), gradient) : gradient, d, dx + i);
  });
}

RowMoments LayerNormRow(const float* x, const float* weight, const float* bias, double eps,
                        int64_t width, float* y) {
  const float sum = SumOver(width, [&](auto d, int64_t i, auto partial)
                                       HWY_ATTR { return hn::Add(partial, hn::LoadU(d, x + i)); });
  const float mean = sum / static_cast<float>(width);
  const float sum_of_squares = SumOver(width, [&](auto d, int64_t i, auto partial) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::MulAdd(centred, centred, partial);
  });
  const float inverse_std =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(sum_of_squares) / width + eps));
  ForEach(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    const auto normal = hn::Mul(centred, hn::Set(d, inverse_std));
    hn::StoreU(hn::MulAdd(normal, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, y + i);
  });
  return {mean, inverse_std};
}

// With n = (x - mean) / std and g = dy * weight: dx = (g - mean(g) - n * mean(g * n)) / std.
void LayerNormRowGradient(const float* x, const float* weight, RowMoments moments, const float* dy,
                          int64_t width, float* dx, bool accumulate_dx, float* dweight,
                          float* dbias) {
  const float sum_g = SumOver(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    return hn::MulAdd(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i), sum);
  });
  const float sum_gn = SumOver(width, [&](auto d, int64_t i, auto sum) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, moments.mean));
    const auto normal = hn::Mul(centred, hn::Set(d, moments.inverse_std));
    return hn::MulAdd(hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, weight + i)), normal, sum);
  });
  const float mean_g = sum_g / static_cast<float>(width);
  const float mean_gn = sum_gn / static_cast<float>(width);
  ForEach(width, [&](auto d, int64_t i) HWY_ATTR {
    const auto inverse_std = hn::Set(d, moments.inverse_std);
    const auto centred = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, moments.mean));
    const auto normal = hn::Mul(centred, inverse_std);
    const auto upstream = hn::LoadU(d, dy + i);
    hn::StoreU(hn::MulAdd(upstream, normal, hn::LoadU(d, dweight + i)), d, dweight + i);
    hn::StoreU(hn::Add(upstream, hn::LoadU(d, dbias + i)), d, dbias + i);
    const auto g = hn::Sub(hn::Mul(upstream, hn::LoadU(d, weight + i)), hn::Set(d, mean_g));
    const auto gradient = hn::Mul(inverse_std, hn::NegMulAdd(normal, hn::Set(d, mean_gn), g));
    hn::StoreU(accumulate_dx ? hn::Add(hn::LoadU(d, dx + i), gradient) : gradient, d, dx + i);
  });
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::cpu::kernels {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(RmsNormRowGradient);
HWY_EXPORT(LayerNormRow);
HWY_EXPORT(LayerNormRowGradient);

float RmsNormRow(const float* x, const float* weight, double eps, int64_t width, float* y) {
  return HWY_DYNAMIC_DISPATCH(RmsNormRow)(x, weight, eps, width, y);
}
void RmsNormRowGradient(const float* x, const float* weight, float inverse_rms, const float* dy,
                        int64_t width, float* dx, bool accumulate_dx, float* dweight) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowGradient)
  (x, weight, inverse_rms, dy, width, dx, accumulate_dx, dweight);
}
RowMoments LayerNormRow(const float* x, const float* weight, const float* bias, double eps,
                        int64_t width, float* y) {
  return HWY_DYNAMIC_DISPATCH(LayerNormRow)(x, weight, bias, eps, width, y);
}
void LayerNormRowGradient(const float* x, const float* weight, RowMoments moments, const float* dy,
                          int64_t width, float* dx, bool accumulate_dx, float* dweight,
                          float* dbias) {
  HWY_DYNAMIC_DISPATCH(LayerNormRowGradient)
  (x, weight, moments, dy, width, dx, accumulate_dx, dweight, dbias);
}

}  // namespace forebay::cpu::kernels
#endif  // HWY_ONCE
