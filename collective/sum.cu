// One element a thread: this waits for memory.
#include <algorithm>
#include <cstdint>

#include "forebay/collective/sum_cuda.h"
#include "forebay/device/cuda_error.h"
#include "forebay/device/kernel.h"

namespace forebay {
namespace {

constexpr int kThreadsPerBlock = 256;
constexpr int64_t kMostBlocks = 1 << 16;

struct Addends {
  const float* of_rank[kMostRanksOfSumCuda];
  int num_ranks;
};

__global__ void SumKernel(Addends addends, float* sum, int64_t num_elems) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreadsPerBlock;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreadsPerBlock + threadIdx.x;
  for (int64_t i = first; i < num_elems; i += stride) {
    float total = addends.of_rank[0][i];
    for (int r = 1; r < addends.num_ranks; ++r) total += addends.of_rank[r][i];
    sum[i] = total;
  }
}

}  // namespace

absl::Status SumInRankOrderCuda(std::span<const float* const> values, float* sum, int64_t num_elems,
                                void* cuda_stream) {
  if (num_elems == 0) return absl::OkStatus();
  Addends addends = {};
  std::copy(values.begin(), values.end(), addends.of_rank);
  addends.num_ranks = static_cast<int>(values.size());
  const int64_t blocks =
      std::min(kMostBlocks, (num_elems + kThreadsPerBlock - 1) / kThreadsPerBlock);
  const cudaError_t error =
      LaunchKernel(&SumKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreadsPerBlock), 0,
                   static_cast<cudaStream_t>(cuda_stream), addends, sum, num_elems);
  if (error != cudaSuccess) return CudaError("adding the values of ranks", error);
  return absl::OkStatus();
}

}  // namespace forebay
