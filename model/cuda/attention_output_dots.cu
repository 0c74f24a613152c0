// The dot product of each query's output and its gradient, which the gradients of attention need.
// One warp sums up one row.
#include "forebay/model/cuda/attention_backward.h"
#include "forebay/model/cuda/attention_simt.h"

namespace forebay::cuda::attention {
namespace {

template <typename T>
__global__ void __launch_bounds__(kSimtThreads)
    OutputDotsKernel(const T* o, const T* d_o, int tokens, int heads, int head_dim,
                     float* output_dots) {
  const int token = blockIdx.x;
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < heads; head += kSimtThreads / 32) {
    const int64_t at = (static_cast<int64_t>(token) * heads + head) * head_dim;
    float sum = 0.0f;
    for (int d = lane; d < head_dim; d += 32) {
      sum = fmaf(ToFloat(o[at + d]), ToFloat(d_o[at + d]), sum);
    }
    FOREBAY_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    }
    if (lane == 0) output_dots[static_cast<int64_t>(head) * tokens + token] = sum;
  }
}

}  // namespace

cudaError_t LaunchOutputDots(DType dtype, const AttentionInputs& in, const void* o, const void* d_o,
                             float* output_dots, cudaStream_t stream) {
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return LaunchKernel(&OutputDotsKernel<T>, dim3(in.tokens), dim3(kSimtThreads), 0, stream,
                        static_cast<const T*>(o), static_cast<const T*>(d_o), in.tokens, in.heads,
                        in.head_dim, output_dots);
  };
  if (dtype == DType::kBF16) return launch(Bf16Element());
  if (dtype == DType::kF16) return launch(Fp16Element());
  return launch(0.0f);
}

}  // namespace forebay::cuda::attention
