#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "forebay/model/cpu/direct_kernels.cc"
#include "hwy/foreach_target.h"  // must come before hwy/highway.h
#include "hwy/highway.h"
//
#include "forebay/model/cpu/for_each-inl.h"
#include "forebay/model/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace forebay::cpu::kernels::HWY_NAMESPACE {

template <typename Weight>
float BiasAt(const DirectProduct& p, int64_t index) {
  if (p.bias == nullptr) return 0.0f;
  const LaneTag lane;
  return hn::GetLane(LoadWeights(lane, static_cast<const Weight*>(p.bias) + index));
}

void Put(const DirectProduct& p, int64_t row, int64_t index, float value) {
  if (p.rounds_to_fp16) value = Fp16ToFloat(FloatToFp16(value));
  float& y = p.y[row * p.out + index];
  y = p.accumulate ? y + value : value;
}

// One output of every row: each weight is read once.
template <int kRows, typename Weight>
void OneOutput(const DirectProduct& p, int64_t index) {
  const Weight* weight = static_cast<const Weight*>(p.weight) + index * p.row_stride;
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // Two or more independent chains of additions, enough to hide their latency behind the loads.
  hn::Vec<FloatTag> even[kRows];
  hn::Vec<FloatTag> odd[kRows];
  for (int row = 0; row < kRows; ++row) even[row] = odd[row] = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= p.in; i += 2 * lanes) {
    const auto w0 = LoadWeights(d, weight + i);
    const auto w1 = LoadWeights(d, weight + i + lanes);
    for (int row = 0; row < kRows; ++row) {
      const float* x = p.x + row * p.in + i;
      even[row] = hn::MulAdd(hn::LoadU(d, x), w0, even[row]);
      odd[row] = hn::MulAdd(hn::LoadU(d, x + lanes), w1, odd[row]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[row], odd[row])));
    const LaneTag lane;
    for (int64_t rest = i; rest < p.in; ++rest) {
      sum += p.x[row * p.in + rest] * hn::GetLane(LoadWeights(lane, weight + rest));
    }
    Put(p, row, index, sum + BiasAt<Weight>(p, index));
  }
}

template <typename Weight>
void DirectRowsTyped(const DirectProduct& p, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) {
    switch (p.num_rows) {
      case 1:
        OneOutput<1, Weight>(p, index);
        break;
      case 2:
        OneOutput<2, Weight>(p, index);
        break;
      case 3:
        OneOutput<3, Weight>(p, index);
        break;
      default:
        OneOutput<4, Weight>(p, index);
        break;
    }
  }
}

// Outputs in strips that fit the first-level cache, adding one stored row of weights after the
// other.
template <typename Weight>
void DirectColumnsTyped(const DirectProduct& p, int64_t begin, int64_t end) {
  constexpr int64_t kStrip = 256;
  float sums[kMaxDirectRows][kStrip];
  for (int64_t first = begin; first < end; first += kStrip) {
    const int64_t width = HWY_MIN(kStrip, end - first);
    for (int64_t row = 0; row < p.num_rows; ++row) {
      for (int64_t i = 0; i < width; ++i) sums[row][i] = 0.0f;
    }
    for (int64_t k = 0; k < p.in; ++k) {
      const Weight* weight = static_cast<const Weight*>(p.weight) + k * p.row_stride + first;
      ForEach(width, [&](auto d, int64_t i) HWY_ATTR {
        const auto w = LoadWeights(d, weight + i);
        for (int64_t row = 0; row < p.num_rows; ++row) {
          const auto x = hn::Set(d, p.x[row * p.in + k]);
          hn::StoreU(hn::MulAdd(x, w, hn::LoadU(d, sums[row] + i)), d, sums[row] + i);
        }
      });
    }
    for (int64_t row = 0; row < p.num_rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        Put(p, row, first + i, sums[row][i] + BiasAt<Weight>(p, first + i));
      }
    }
  }
}

void DirectRows(const DirectProduct& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::kBF16:
      return DirectRowsTyped<Bf16>(p, begin, end);
    case DType::kF16:
      return DirectRowsTyped<Fp16Bits>(p, begin, end);
    case DType::kF32:
      return DirectRowsTyped<float>(p, begin, end);
  }
}

void DirectColumns(const DirectProduct& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case DType::kBF16:
      return DirectColumnsTyped<Bf16>(p, begin, end);
    case DType::kF16:
      return DirectColumnsTyped<Fp16Bits>(p, begin, end);
    case DType::kF32:
      return DirectColumnsTyped<float>(p, begin, end);
  }
}

}  // namespace forebay::cpu::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace forebay::cpu::kernels {

HWY_EXPORT(DirectRows);
HWY_EXPORT(DirectColumns);

void DirectRows(const DirectProduct& product, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(DirectRows)(product, begin, end);
}
void DirectColumns(const DirectProduct& product, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(DirectColumns)(product, begin, end);
}

}  // namespace forebay::cpu::kernels
#endif  // HWY_ONCE
