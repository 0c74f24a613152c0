// RMSNorm and LayerNorm over rows. Gradients of the weights are summed over blocks of rows, then
// block by block.
#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/kernels.h"
#include "forebay/model/cpu/partial_sums.h"

namespace forebay::cpu {
namespace {

constexpr int64_t kForwardBlockRows = 32;

// Weight and bias (zeros for nullptr) in fp32.
struct NormWeights {
  const float* weight;
  const float* bias;
};
NormWeights WidenNorm(Context::Impl& impl, const void* weight, const void* bias, DType dtype,
                      int64_t width) {
  float* out = impl.shared.Get<float>(Slot::kNormWeight, 2 * width);
  kernels::Widen(weight, dtype, width, out);
  if (bias == nullptr) {
    std::fill_n(out + width, width, 0.0f);
  } else {
    kernels::Widen(bias, dtype, width, out + width);
  }
  return {out, out + width};
}

}  // namespace

int64_t PartialSumRows(int64_t rows) {
  return std::max<int64_t>(64, (rows + kMaxPartialSums - 1) / kMaxPartialSums);
}

void RmsNormForward(Context& context, const float* x, const void* weight, DType dtype, double eps,
                    int64_t rows, int64_t width, float* y, float* inverse_rms) {
  Context::Impl& impl = context.impl();
  const NormWeights wide = WidenNorm(impl, weight, nullptr, dtype, width);
  impl.ParallelBlocks(rows, kForwardBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      inverse_rms[row] =
          kernels::RmsNormRow(x + row * width, wide.weight, eps, width, y + row * width);
    }
  });
}

void RmsNormBackward(Context& context, const float* x, const void* weight, DType dtype,
                     const float* inverse_rms, const float* dy, int64_t rows, int64_t width,
                     float* dx, bool accumulate_dx, float* dweight) {
  Context::Impl& impl = context.impl();
  const NormWeights wide = WidenNorm(impl, weight, nullptr, dtype, width);
  float* sums[] = {dweight};
  SumOverRowBlocks(impl, rows, width, sums, [&](int64_t row, std::span<float* const> partial) {
    kernels::RmsNormRowGradient(x + row * width, wide.weight, inverse_rms[row], dy + row * width,
                                width, dx + row * width, accumulate_dx, partial[0]);
  });
}

void LayerNormForward(Context& context, const float* x, const void* weight, const void* bias,
                      DType dtype, double eps, int64_t rows, int64_t width, float* y, float* mean,
                      float* inverse_std) {
  Context::Impl& impl = context.impl();
  const NormWeights wide = WidenNorm(impl, weight, bias, dtype, width);
  impl.ParallelBlocks(rows, kForwardBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const kernels::RowMoments moments = kernels::LayerNormRow(
          x + row * width, wide.weight, wide.bias, eps, width, y + row * width);
      mean[row] = moments.mean;
      inverse_std[row] = moments.inverse_std;
    }
  });
}

void LayerNormBackward(Context& context, const float* x, const void* weight, DType dtype,
                       const float* mean, const float* inverse_std, const float* dy, int64_t rows,
                       int64_t width, float* dx, bool accumulate_dx, float* dweight, float* dbias) {
  Context::Impl& impl = context.impl();
  const NormWeights wide = WidenNorm(impl, weight, nullptr, dtype, width);
  float* sums[] = {dweight, dbias};
  SumOverRowBlocks(impl, rows, width, sums, [&](int64_t row, std::span<float* const> partial) {
    kernels::LayerNormRowGradient(x + row * width, wide.weight, {mean[row], inverse_std[row]},
                                  dy + row * width, width, dx + row * width, accumulate_dx,
                                  partial[0], partial[1]);
  });
}

}  // namespace forebay::cpu
