// The vectorised inner loops (Highway, the best instruction set of the CPU chosen at run time).
// Each works on one row or block on the calling thread, with a fixed order of summation; cutting
// work into tasks is the operators' job. All are thread-safe. Pointers need no alignment; buffers
// do not overlap unless said.
#pragma once

#include <cstdint>

#include "forebay/base/bfloat16.h"
#include "forebay/base/dtype.h"

namespace forebay::cpu::kernels {

// An fp16 in memory, where the type must say which of the two 16-bit formats it is.
struct Fp16Bits {
  Fp16 bits;
};

// ---- Conversion and sums (vector_kernels.cc) ----
// Exact. kBF16, kF16 or kF32.
void Widen(const void* in, DType dtype, int64_t count, float* out);
// Rounds to nearest, ties to even; NaN stays NaN.
void NarrowToBf16(const float* in, int64_t count, Bf16* out);
// The same of in[i] * factor.
void NarrowScaledToBf16(const float* in, float factor, int64_t count, Bf16* out);
// y += x
void Add(const float* x, int64_t count, float* y);
// To the nearest values of fp16, ties to even; what is too large becomes infinite. `out` may be
// `in`.
void RoundToFp16(const float* in, int64_t count, float* out);
// y += x rounded so.
void AddRoundedToFp16(const float* x, int64_t count, float* y);
// y += weights, of any type.
void AddWeights(const void* weights, DType dtype, int64_t count, float* y);
// y = y * factor
void Scale(float factor, int64_t count, float* y);
// Sum of x[i] * y[i].
float Dot(const float* x, const float* y, int64_t count);
// y += factor * x
void AddScaled(float factor, const float* x, int64_t count, float* y);

// ---- Products of a few rows with weights as stored (direct_kernels.cc) ----
inline constexpr int64_t kMaxDirectRows = 4;
struct DirectProduct {
  DType dtype = DType::kBF16;
  const void* weight = nullptr;
  int64_t row_stride = 0;
  const void* bias = nullptr;  // [out] or nullptr
  int64_t in = 0, out = 0;
  const float* x = nullptr;  // [num_rows, in]
  int64_t num_rows = 0;      // at most kMaxDirectRows
  float* y = nullptr;        // [num_rows, out]
  bool accumulate = false;
  bool rounds_to_fp16 = false;  // the outputs, before they are added
};
// Outputs [begin, end) of y for weights stored [out, in], and [in, out].
void DirectRows(const DirectProduct& product, int64_t begin, int64_t end);
void DirectColumns(const DirectProduct& product, int64_t begin, int64_t end);

// ---- Elementwise activations (activation_kernels.cc) ----
// Outputs may be the same buffers as inputs.
void SwiGlu(const float* gate, const float* up, int64_t count, float* out);
void SwiGluGradient(const float* gate, const float* up, const float* dout, int64_t count,
                    float* dgate, float* dup);
void GeluTanh(const float* x, int64_t count, float* out);
void GeluTanhGradient(const float* x, const float* dout, int64_t count, float* dx);
// Rotates the pairs (i, i + half) of each of `heads` heads [2 * half] in place; sign is +1, or -1
// for the transpose.
void RotateHeads(const float* cosines, const float* sines, float sign, int64_t half, int64_t heads,
                 float* x);

// ---- Norms over one row (norm_kernels.cc) ----
// y = x * r * weight with r = 1 / sqrt(mean(x^2) + eps), which is returned.
float RmsNormRow(const float* x, const float* weight, double eps, int64_t width, float* y);
// dweight += dy * x * r; dx (+)= r * (dy * weight - x * r * mean(dy * weight * x * r)).
void RmsNormRowGradient(const float* x, const float* weight, float inverse_rms, const float* dy,
                        int64_t width, float* dx, bool accumulate_dx, float* dweight);
struct RowMoments {
  float mean, inverse_std;
};
RowMoments LayerNormRow(const float* x, const float* weight, const float* bias, double eps,
                        int64_t width, float* y);
void LayerNormRowGradient(const float* x, const float* weight, RowMoments moments, const float* dy,
                          int64_t width, float* dx, bool accumulate_dx, float* dweight,
                          float* dbias);

// ---- Softmax (softmax_kernels.cc) ----
// Requires: count > 0.
float Max(const float* x, int64_t count);
// Sum of exp(x[i] - shift).
float SumExp(const float* x, float shift, int64_t count);
// x[i] = exp(x[i] - shift); returns the sum.
float ExpInPlace(float shift, int64_t count, float* x);
// x[i] = exp(x[i] - shift) * factor
void ScaledExpInPlace(float shift, float factor, int64_t count, float* x);
// g[i] = p[i] * (g[i] - delta) * factor: the gradient of scaled scores from that of their softmax
// p.
void SoftmaxGradient(const float* p, float delta, float factor, int64_t count, float* g);

}  // namespace forebay::cpu::kernels
