#include "forebay/model/cuda/bias.h"

#include "forebay/model/cuda/column_sums.h"

namespace forebay::cuda {
namespace {

template <typename T>
struct RowTerm {
  static constexpr int kSums = 1;
  const T* rows;
  int64_t width;

  template <int kCount>
  FOREBAY_DEVICE void Add(int64_t row, int64_t column, float (&sums)[kSums][kCount]) const {
    float values[kCount];
    Load(rows + row * width + column, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[0][j] += values[j];
  }
};

}  // namespace

absl::Status AddBiasGradient(Context& context, const void* dy, int64_t rows, int64_t out,
                             float* dbias) {
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    return AddColumnSums<kWide<T>>(context, "the gradient of a bias",
                                   RowTerm<T>{static_cast<const T*>(dy), out}, AreAligned({dy}),
                                   rows, out, {{dbias}});
  });
}

}  // namespace forebay::cuda
