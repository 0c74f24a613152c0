#include "forebay/device/kernel.h"
#include "forebay/device/ptx.h"
#include "forebay/tests/device/emulation/wrong_programs.h"

namespace forebay::wrong_kernels {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kWarps = kThreads / 32;

__device__ float SumOfWarp(Wrong wrong, float value) {
  if (wrong == Wrong::kShuffleOfHalfAWarp && threadIdx.x % 32 >= 16) return value;
  unsigned mask = kWholeWarp;
  if (wrong == Wrong::kLaneOutsideItsMask) mask = 0x7fffffffu;
  if (wrong == Wrong::kShuffleFromAnAbsentLane) {
    mask = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(mask, value, distance);
  }
  return value;
}

__device__ void BarrierOf(Wrong wrong) {
  if (wrong == Wrong::kBarrierInABranch) {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (wrong != Wrong::kBarrierSkippedByAWarp || threadIdx.x >= 32) {
    __syncthreads();
  }
}

// The sum of a value of each thread of the block, for all of them.
__device__ float SumOfBlock(Wrong wrong, float* sums, float value) {
  if (wrong != Wrong::kNoBarrierBeforeReuse) __syncthreads();
  value = SumOfWarp(wrong, value);
  const int place =
      wrong == Wrong::kSharedOverrun ? kWarps - 1 + threadIdx.x / 32 : threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) sums[place] = value;
  if (wrong != Wrong::kNoBarrierAfterWrite) BarrierOf(wrong);
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += sums[i];
  return sum;
}

__global__ void SumBlocksKernel(Wrong wrong, float* sums, unsigned* count, const float* values,
                                int num_elems) {
  FOREBAY_SHARED(float, sums_of_warps, [kWarps]);
  FOREBAY_SHARED(float, kept, [kThreads]);
  const float* const own = values + static_cast<int64_t>(blockIdx.x) * num_elems;
  const int end = num_elems + (wrong == Wrong::kGlobalReadOverrun ? 1 : 0);
  if (wrong != Wrong::kSharedUninitialised) kept[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < end; i += kThreads) kept[threadIdx.x] += own[i];
  // Twice over: the second time the sums of the first are still being read.
  const float part = SumOfBlock(wrong, sums_of_warps, 0.25f * kept[threadIdx.x]);
  const float whole = part + SumOfBlock(wrong, sums_of_warps, 0.75f * kept[threadIdx.x]);
  if (threadIdx.x != 0) return;
  sums[wrong == Wrong::kBlocksWriteOnePlace ? 0 : blockIdx.x] = whole;
  if (wrong == Wrong::kGlobalWriteOverrun && blockIdx.x == 0) sums[gridDim.x] = 0;
  if (wrong == Wrong::kNoAtomic) {
    ++*count;
  } else {
    atomicAdd(count, 1u);
  }
}

// Through shared memory. A shuffle in between orders no memory.
__global__ void SwapNeighboursKernel(Wrong wrong, float* to, const float* from) {
  FOREBAY_SHARED(float, values, [kThreads]);
  values[threadIdx.x] = from[threadIdx.x];
  const float other = __shfl_xor_sync(kWholeWarp, from[threadIdx.x], 1);
  if (wrong != Wrong::kNoSyncWarp) __syncwarp();
  to[threadIdx.x] = values[threadIdx.x ^ 1] + 0 * other;
}

__device__ void CopyTile(float* to, const float* from) {
  for (int i = 4 * threadIdx.x; i < kTileElems; i += 4 * kThreads) CopyAsync16(to + i, from + i);
  CommitCopies();
}

__global__ void SumTilesKernel(Wrong wrong, float* to, const float* tiles, int num_tiles) {
  FOREBAY_DYNAMIC_SHARED(float, slots);
  float sums[kTileElems / kThreads] = {};
  CopyTile(slots, tiles);
  for (int tile = 0; tile < num_tiles; ++tile) {
    const float* const slot = slots + tile % 2 * kTileElems;
    if (tile + 1 < num_tiles) {
      CopyTile(slots + (tile + 1) % 2 * kTileElems, tiles + (tile + 1) * kTileElems);
      if (wrong != Wrong::kCopyNotAwaited) AwaitCopies<1>();
    } else if (wrong == Wrong::kCopyAwaitedTooLittle) {
      AwaitCopies<1>();
    } else if (wrong != Wrong::kCopyNotAwaited) {
      AwaitCopies<0>();
    }
    if (wrong != Wrong::kNoBarrierAfterCopies) __syncthreads();
    for (int i = 0; i < kTileElems / kThreads; ++i) {
      sums[i] += slot[kTileElems - 1 - (i * kThreads + threadIdx.x)];
    }
    if (wrong != Wrong::kNoBarrierBeforeNextCopy) __syncthreads();
  }
  for (int i = 0; i < kTileElems / kThreads; ++i) to[i * kThreads + threadIdx.x] = sums[i];
}

__global__ void AddScaledKernel(float* sum, const float* values, int num_elems, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num_elems) sum[i] = fmaf(factor, values[i], sum[i]);
}

}  // namespace

cudaError_t SumBlocks(Wrong wrong, float* sums, unsigned* count, const float* values, int num_elems,
                      int num_blocks, cudaStream_t stream) {
  return LaunchKernel(&SumBlocksKernel, dim3(num_blocks), dim3(kThreads), 0, stream, wrong, sums,
                      count, values, num_elems);
}

cudaError_t SwapNeighbours(Wrong wrong, float* to, const float* from, cudaStream_t stream) {
  return LaunchKernel(&SwapNeighboursKernel, dim3(1), dim3(kThreads), 0, stream, wrong, to, from);
}

cudaError_t SumTiles(Wrong wrong, float* to, const float* tiles, int num_tiles,
                     cudaStream_t stream) {
  const size_t shared_bytes = wrong == Wrong::kNoDynamicShared ? 0 : 2 * kTileElems * sizeof(float);
  return LaunchKernel(&SumTilesKernel, dim3(1), dim3(kThreads), shared_bytes, stream, wrong, to,
                      tiles, num_tiles);
}

cudaError_t AddScaled(float* sum, const float* values, int num_elems, float factor,
                      cudaStream_t stream) {
  return LaunchKernel(&AddScaledKernel, dim3((num_elems + kThreads - 1) / kThreads), dim3(kThreads),
                      0, stream, sum, values, num_elems, factor);
}

}  // namespace forebay::wrong_kernels
