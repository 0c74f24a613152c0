#include <cstring>

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

double RoundAndSumSquaresRef(const float* gradient, int64_t num_elems, Bf16* rounded) {
  for (int64_t i = 0; i < num_elems; ++i) rounded[i] = FloatToBf16(gradient[i]);
  return SumSquares(num_elems, [rounded](int64_t i) { return Bf16ToFloat(rounded[i]); });
}

double CopyAndSumSquaresRef(const float* gradient, int64_t num_elems, float* copied) {
  std::memcpy(copied, gradient, static_cast<size_t>(num_elems) * sizeof(float));
  return SumSquares(num_elems, [copied](int64_t i) { return copied[i]; });
}

}  // namespace forebay
