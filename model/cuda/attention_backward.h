// Inputs of the gradients of attention, with tensor cores and without them.
#pragma once

#include <cstdint>

#include "forebay/base/dtype.h"
#include "forebay/model/cuda/attention_kernels.h"

namespace forebay::cuda::attention {

struct AttentionGradients {
  const void* d_o;           // [tokens, heads, head_dim]
  const float* log_sum_exp;  // [heads, tokens]
  const float* output_dots;  // [heads, tokens]: sum of d_o * o, the D of the paper
  void* dq;                  // as q, k and v
  void* dk;
  void* dv;
};

// Two matrices of the same shape: the pair of which the scores are made first.
template <typename T>
struct MatrixPair {
  const T* scored;  // q or k
  const T* other;   // d_o or v
  int64_t row_stride;
};
template <typename T>
FOREBAY_DEVICE MatrixPair<T> QueryPair(const AttentionInputs& in, const AttentionGradients& g,
                                       int head) {
  return {static_cast<const T*>(in.q) + head * in.head_dim,
          static_cast<const T*>(g.d_o) + head * in.head_dim,
          static_cast<int64_t>(in.heads) * in.head_dim};
}
template <typename T>
FOREBAY_DEVICE MatrixPair<T> KeyPair(const AttentionInputs& in, int kv_head) {
  return {static_cast<const T*>(in.k) + kv_head * in.head_dim,
          static_cast<const T*>(in.v) + kv_head * in.head_dim,
          static_cast<int64_t>(in.kv_heads) * in.head_dim};
}
// The softmax's gradient needs these of a query.
struct QueryStatistics {
  float log2_sum = 0.0f;
  float output_dot = 0.0f;
};
FOREBAY_DEVICE QueryStatistics StatisticsOf(const AttentionInputs& in, const AttentionGradients& g,
                                            int head, int query) {
  if (query >= in.tokens) return {};
  const int64_t at = static_cast<int64_t>(head) * in.tokens + query;
  return {g.log_sum_exp[at] * kLog2E, g.output_dots[at]};
}

// Launches. `fp16`: elements are fp16, else bf16.
cudaError_t LaunchOutputDots(DType dtype, const AttentionInputs& in, const void* o, const void* d_o,
                             float* output_dots, cudaStream_t stream);
cudaError_t LaunchTensorBackward(bool fp16, const AttentionInputs& in,
                                 const AttentionGradients& gradients, cudaStream_t stream);
cudaError_t LaunchSimtBackward(DType dtype, const AttentionInputs& in,
                               const AttentionGradients& gradients, cudaStream_t stream);

}  // namespace forebay::cuda::attention
