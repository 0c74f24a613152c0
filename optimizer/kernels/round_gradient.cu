// Half a warp a block of the norm: its lanes are the block's partial sums, so what they read lies
// side by side. This waits for memory.
#include <cstdint>

#include "forebay/device/cuda_error.h"
#include "forebay/device/kernel.h"
#include "forebay/optimizer/kernels/elements_cuda.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/kernels/round_gradient_cuda.h"

namespace forebay {
namespace {

constexpr int kNumPartials = 16;  // RoundAndSumSquares has so many
constexpr int kThreadsPerBlock = 256;
constexpr int kNormBlocksPerBlock = kThreadsPerBlock / kNumPartials;
constexpr unsigned kWholeWarp = 0xffffffffu;

// How a gradient of each dtype is stored; gives the value that was stored.
struct AsF32 {
  float* to;
  __device__ float Store(int64_t i, float value) const { return to[i] = value; }
};
struct AsBf16 {
  uint16_t* to;
  __device__ float Store(int64_t i, float value) const {
    return FloatOfBf16(to[i] = Bf16OfFloat(value));
  }
};
struct AsFp16 {
  uint16_t* to;
  __device__ float Store(int64_t i, float value) const {
    return FloatOfFp16(to[i] = Fp16OfFloat(value));
  }
};

template <typename Rounded>
__global__ void RoundKernel(const float* gradient, int64_t num_blocks, Rounded rounded,
                            double* block_squares) {
  const int lane = static_cast<int>(threadIdx.x) % kNumPartials;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kNormBlocksPerBlock +
                        static_cast<int64_t>(threadIdx.x) / kNumPartials;
  double partial = 0;
  if (block < num_blocks) {
    const int64_t first = block * kNormBlockElems + lane;
#pragma unroll 8
    for (int64_t i = first; i < first + kNormBlockElems; i += kNumPartials) {
      const double value = rounded.Store(i, gradient[i]);
      partial += value * value;  // exact: a fused multiply-add gives the same
    }
  }
  double sum = 0;
  for (int from = 0; from < kNumPartials; ++from) {
    sum += __shfl_sync(kWholeWarp, partial, from, kNumPartials);
  }
  if (block < num_blocks && lane == 0) block_squares[block] = sum;
}

template <typename Rounded>
cudaError_t Launch(const float* gradient, int64_t num_blocks, Rounded rounded,
                   double* block_squares, void* cuda_stream) {
  const int64_t grid = (num_blocks + kNormBlocksPerBlock - 1) / kNormBlocksPerBlock;
  return LaunchKernel(&RoundKernel<Rounded>, dim3(static_cast<unsigned>(grid)),
                      dim3(kThreadsPerBlock), 0, static_cast<cudaStream_t>(cuda_stream), gradient,
                      num_blocks, rounded, block_squares);
}

cudaError_t LaunchFor(DType dtype, const float* gradient, int64_t num_blocks, void* rounded,
                      double* block_squares, void* cuda_stream) {
  const auto launch = [&](auto as) {
    return Launch(gradient, num_blocks, as, block_squares, cuda_stream);
  };
  switch (dtype) {
    case DType::kF32:
      return launch(AsF32{static_cast<float*>(rounded)});
    case DType::kBF16:
      return launch(AsBf16{static_cast<uint16_t*>(rounded)});
    case DType::kF16:
      return launch(AsFp16{static_cast<uint16_t*>(rounded)});
  }
  return cudaErrorInvalidValue;
}

}  // namespace

absl::Status RoundGradientCuda(const float* gradient, int64_t num_elems, DType dtype, void* rounded,
                               double* block_squares, void* cuda_stream) {
  if (num_elems == 0) return absl::OkStatus();
  const cudaError_t error =
      LaunchFor(dtype, gradient, num_elems / kNormBlockElems, rounded, block_squares, cuda_stream);
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaError("launching the kernel that rounds gradients", error);
}

}  // namespace forebay
