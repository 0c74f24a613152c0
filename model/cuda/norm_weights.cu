// Gradients of a norm's weights: sums over its rows.
#include "forebay/model/cuda/column_sums.h"
#include "forebay/model/cuda/norm.h"

namespace forebay::cuda {
namespace {

template <typename T, bool kCentred>
struct NormTerm {
  static constexpr int kSums = kCentred ? 2 : 1;
  const T* x;
  const T* dy;
  const float* mean;
  const float* inverse;
  int64_t width;

  template <int kCount>
  FOREBAY_DEVICE void Add(int64_t row, int64_t column, float (&sums)[kSums][kCount]) const {
    float values[kCount];
    float upstream[kCount];
    Load(x + row * width + column, values);
    Load(dy + row * width + column, upstream);
    const float centre = kCentred ? mean[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sums[0][j] += upstream[j] * ((values[j] - centre) * inverse[row]);
      if constexpr (kCentred) sums[1][j] += upstream[j];
    }
  }
};

template <bool kCentred>
absl::Status AddGradients(Context& context, const NormGradient& norm,
                          const SumTargets<kCentred ? 2 : 1>& targets) {
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const NormTerm<T, kCentred> term = {.x = static_cast<const T*>(norm.x),
                                        .dy = static_cast<const T*>(norm.dy),
                                        .mean = norm.mean,
                                        .inverse = norm.inverse,
                                        .width = norm.width};
    return AddColumnSums<kWide<T>>(context, "the gradient of a norm's weights", term,
                                   AreAligned({norm.x, norm.dy}), norm.rows, norm.width, targets);
  });
}

}  // namespace

absl::Status AddNormWeightGradients(Context& context, const NormGradient& norm, float* dweight,
                                    float* dbias) {
  if (norm.mean == nullptr) return AddGradients<false>(context, norm, {{dweight}});
  return AddGradients<true>(context, norm, {{dweight, dbias}});
}

}  // namespace forebay::cuda
