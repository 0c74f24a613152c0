#include <algorithm>

#include "forebay/base/bfloat16.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {
namespace {

constexpr int kNumPartials = 16;

template <typename ValueAt>
double SumSquares(int64_t num_elems, const ValueAt& value_at) {
  double partials[kNumPartials] = {};
  for (int64_t i = 0; i < num_elems; ++i) {
    const double value = value_at(i);
    partials[i % kNumPartials] += value * value;
  }
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum;
}

}  // namespace

double RoundAndSumSquaresRef(const float* gradient, int64_t num_elems, DType dtype, void* rounded) {
  const auto halves = static_cast<uint16_t*>(rounded);
  switch (dtype) {
    case DType::kF32:
      std::copy_n(gradient, num_elems, static_cast<float*>(rounded));
      return SumSquares(num_elems, [=](int64_t i) { return gradient[i]; });
    case DType::kBF16:
      for (int64_t i = 0; i < num_elems; ++i) halves[i] = FloatToBf16(gradient[i]);
      return SumSquares(num_elems, [=](int64_t i) { return Bf16ToFloat(halves[i]); });
    case DType::kF16:
      for (int64_t i = 0; i < num_elems; ++i) halves[i] = FloatToFp16(gradient[i]);
      return SumSquares(num_elems, [=](int64_t i) { return Fp16ToFloat(halves[i]); });
  }
  return 0;
}

}  // namespace forebay
