// One thread an element: like the CPU kernels this waits for memory, and a warp's accesses lie side
// by side.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/adamw_cuda.h"
#include "forebay/optimizer/kernels/adamw_scalars.h"

namespace forebay {
namespace {

constexpr int kThreadsPerBlock = 256;

__device__ float ToFloat(float gradient) {
  return gradient;
}
__device__ float ToFloat(uint16_t gradient) {
  return __uint_as_float(static_cast<uint32_t>(gradient) << 16);
}

// Where the fp32 master weight is read from and written to.
struct Fp32Weights {
  float* weight;
  __device__ float Load(int64_t i) const { return weight[i]; }
  __device__ void Store(int64_t i, float p) const { weight[i] = p; }
};

// As Join and Split of base/bfloat16.h.
struct SplitWeights {
  uint16_t* w16;
  int16_t* r16;
  __device__ float Load(int64_t i) const {
    return __uint_as_float((static_cast<uint32_t>(w16[i]) << 16) +
                           static_cast<uint32_t>(static_cast<int32_t>(r16[i])));
  }
  __device__ void Store(int64_t i, float p) const {
    const uint32_t bits = __float_as_uint(p);
    const uint16_t high = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    w16[i] = high;
    r16[i] = static_cast<int16_t>(bits - (static_cast<uint32_t>(high) << 16));
  }
};

// The reference's operations (adamw_scalars.h). The intrinsics round each on its own: nvcc never
// fuses them.
template <typename Weights, typename Gradient>
__global__ void UpdateKernel(AdamWScalars s, int64_t num_elems, Weights weights, float* ms,
                             float* vs, const Gradient* gradients) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreadsPerBlock + threadIdx.x;
  if (i >= num_elems) return;
  const float g = __fmul_rn(ToFloat(gradients[i]), s.gradient_scale);
  const float m = __fadd_rn(ms[i], __fmul_rn(__fsub_rn(g, ms[i]), s.one_minus_beta1));
  const float v =
      __fadd_rn(__fmul_rn(vs[i], s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
  const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(v), s.inverse_sqrt_correction2), s.eps);
  const float p = __fmul_rn(weights.Load(i), s.keep);
  weights.Store(i, __fsub_rn(p, __fmul_rn(s.step_size, __fdiv_rn(m, denominator))));
  ms[i] = m;
  vs[i] = v;
}

template <typename Weights, typename Gradient>
void Launch(const AdamWScalars& scalars, const AdamWTile& tile, const Weights& weights,
            const Gradient* gradient, cudaStream_t stream) {
  const int64_t num_blocks = (tile.num_elems + kThreadsPerBlock - 1) / kThreadsPerBlock;
  UpdateKernel<<<static_cast<unsigned>(num_blocks), kThreadsPerBlock, 0, stream>>>(
      scalars, tile.num_elems, weights, tile.m, tile.v, gradient);
}

template <typename Weights>
void Launch(const AdamWScalars& scalars, const AdamWTile& tile, const Weights& weights,
            cudaStream_t stream) {
  if (tile.gradient_is_bf16) {
    Launch(scalars, tile, weights, static_cast<const uint16_t*>(tile.gradient), stream);
  } else {
    Launch(scalars, tile, weights, static_cast<const float*>(tile.gradient), stream);
  }
}

}  // namespace

absl::Status AdamWCuda(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile,
                       void* cuda_stream) {
  if (tile.num_elems == 0) return absl::OkStatus();
  const AdamWScalars scalars(config, step, tile.decay);
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  if (tile.layout == Layout::kFp32) {
    Launch(scalars, tile, Fp32Weights{static_cast<float*>(tile.weight)}, stream);
  } else {
    Launch(scalars, tile, SplitWeights{static_cast<uint16_t*>(tile.weight), tile.remainder},
           stream);
  }
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return absl::OkStatus();
  return EnvironmentError(std::string("the AdamW kernel could not be launched: ") +
                          cudaGetErrorString(error) +
                          ". Look at 'nvidia-smi', or run without the GPU");
}

}  // namespace forebay
