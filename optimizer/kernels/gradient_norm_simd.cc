#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/optimizer/kernels/gradient_norm_simd.cc"
#include "hwy/foreach_target.h"
// After hwy/foreach_target.h.
#include "forebay/base/check.h"
#include "forebay/base/fp16-inl.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace forebay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most four doubles a vector: with four accumulators that is at most 16 lanes, one partial sum
// each. Narrower targets go over the block (8 KiB, in cache) again for the partial sums that are
// left.
using DD = hn::CappedTag<double, 4>;
using DF = hn::Rebind<float, DD>;
using VF = hn::Vec<DF>;
constexpr int64_t kNumPartials = 16;

// Each hands over one vector and returns it as fp32.
struct RoundToBf16 {
  const float* HWY_RESTRICT gradient;
  uint16_t* HWY_RESTRICT rounded;
  HWY_INLINE VF operator()(DF d, int64_t i) const {
    const VF value = hn::LoadU(d, gradient + i);
    const hn::RebindToUnsigned<DF> du;
    const hn::Rebind<uint16_t, DF> dh;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto nearest = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
    const auto quiet_nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet_nan, nearest);
    const hn::RebindToSigned<DF> di;
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, result)), dh, rounded + i);
    return hn::BitCast(d, hn::ShiftLeft<16>(result));
  }
};

struct RoundToFp16 {
  const float* HWY_RESTRICT gradient;
  uint16_t* HWY_RESTRICT rounded;
  HWY_INLINE VF operator()(DF d, int64_t i) const {
    const hn::Rebind<uint16_t, DF> dh;
    const hn::RebindToSigned<DF> di;
    const auto bits = fp16::HWY_NAMESPACE::Narrow(d, hn::LoadU(d, gradient + i));
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, bits)), dh, rounded + i);
    return fp16::HWY_NAMESPACE::Widen(d, bits);
  }
};

struct CopyFp32 {
  const float* HWY_RESTRICT gradient;
  float* HWY_RESTRICT copied;
  HWY_INLINE VF operator()(DF d, int64_t i) const {
    const VF value = hn::LoadU(d, gradient + i);
    hn::StoreU(value, d, copied + i);
    return value;
  }
};

struct CopyBf16 {
  const uint16_t* HWY_RESTRICT gradient;
  uint16_t* HWY_RESTRICT copied;
  HWY_INLINE VF operator()(DF d, int64_t i) const {
    const hn::Rebind<uint16_t, DF> dh;
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::LoadU(dh, gradient + i);
    hn::StoreU(bits, dh, copied + i);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  }
};

struct CopyFp16 {
  const uint16_t* HWY_RESTRICT gradient;
  uint16_t* HWY_RESTRICT copied;
  HWY_INLINE VF operator()(DF d, int64_t i) const {
    const hn::Rebind<uint16_t, DF> dh;
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::LoadU(dh, gradient + i);
    hn::StoreU(bits, dh, copied + i);
    return fp16::HWY_NAMESPACE::Widen(d, hn::PromoteTo(du, bits));
  }
};

template <typename HandOver>
double HandOverAndSumSquares(int64_t num_elems, const HandOver& hand_over) {
  const DD dd;
  const DF df;
  const int64_t num_lanes = static_cast<int64_t>(hn::Lanes(dd));
  const auto square = [&](int64_t i) HWY_ATTR {
    const auto value = hn::PromoteTo(dd, hand_over(df, i));
    return hn::Mul(value, value);
  };
  HWY_ALIGN double partials[kNumPartials];
  for (int64_t lane = 0; lane < kNumPartials; lane += 4 * num_lanes) {
    auto sum0 = hn::Zero(dd), sum1 = hn::Zero(dd), sum2 = hn::Zero(dd), sum3 = hn::Zero(dd);
    for (int64_t i = lane; i < num_elems; i += kNumPartials) {
      sum0 = hn::Add(sum0, square(i));
      sum1 = hn::Add(sum1, square(i + num_lanes));
      sum2 = hn::Add(sum2, square(i + 2 * num_lanes));
      sum3 = hn::Add(sum3, square(i + 3 * num_lanes));
    }
    hn::StoreU(sum0, dd, partials + lane);
    hn::StoreU(sum1, dd, partials + lane + num_lanes);
    hn::StoreU(sum2, dd, partials + lane + 2 * num_lanes);
    hn::StoreU(sum3, dd, partials + lane + 3 * num_lanes);
  }
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum;
}

double RoundBlock(const float* gradient, int64_t num_elems, DType dtype, void* rounded) {
  const auto halves = static_cast<uint16_t*>(rounded);
  switch (dtype) {
    case DType::kF32:
      return HandOverAndSumSquares(num_elems, CopyFp32{gradient, static_cast<float*>(rounded)});
    case DType::kBF16:
      return HandOverAndSumSquares(num_elems, RoundToBf16{gradient, halves});
    case DType::kF16:
      return HandOverAndSumSquares(num_elems, RoundToFp16{gradient, halves});
  }
  return 0;
}

double CopyBlock(const void* gradient, int64_t num_elems, DType dtype, void* copied) {
  const auto from = static_cast<const uint16_t*>(gradient);
  const auto to = static_cast<uint16_t*>(copied);
  switch (dtype) {
    case DType::kF32:
      return HandOverAndSumSquares(
          num_elems, CopyFp32{static_cast<const float*>(gradient), static_cast<float*>(copied)});
    case DType::kBF16:
      return HandOverAndSumSquares(num_elems, CopyBf16{from, to});
    case DType::kF16:
      return HandOverAndSumSquares(num_elems, CopyFp16{from, to});
  }
  return 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace forebay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay {

HWY_EXPORT(RoundBlock);
HWY_EXPORT(CopyBlock);

double RoundAndSumSquares(const float* gradient, int64_t num_elems, DType dtype, void* rounded) {
  FOREBAY_CHECK(num_elems % 16 == 0);
  return HWY_DYNAMIC_DISPATCH(RoundBlock)(gradient, num_elems, dtype, rounded);
}

double CopyAndSumSquares(const void* gradient, int64_t num_elems, DType dtype, void* copied) {
  FOREBAY_CHECK(num_elems % 16 == 0);
  return HWY_DYNAMIC_DISPATCH(CopyBlock)(gradient, num_elems, dtype, copied);
}

}  // namespace forebay
#endif  // HWY_ONCE
