// CUDA programs, right and wrong on purpose: that the emulated GPU notices what a GPU may forgive.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace forebay {

// The mistake of a program.
enum class Wrong : uint8_t {
  kNothing,
  // ---- Kernels
  kNoBarrierAfterWrite,
  kNoBarrierBeforeReuse,
  kBarrierInABranch,
  kBarrierSkippedByAWarp,
  kShuffleOfHalfAWarp,
  kLaneOutsideItsMask,
  kShuffleFromAnAbsentLane,
  kNoSyncWarp,
  kSharedOverrun,
  kSharedUninitialised,
  kGlobalReadOverrun,
  kGlobalWriteOverrun,
  kCopyNotAwaited,
  kCopyAwaitedTooLittle,
  kNoBarrierAfterCopies,
  kNoBarrierBeforeNextCopy,
  kBlocksWriteOnePlace,
  kNoAtomic,
  kNoDynamicShared,
  // ---- Streams
  kNoEventBeforeKernel,
  kNoEventBeforeCopy,
  kEventRecordedTooEarly,
  kHostSlotUsedAgain,
  kResultReadTooEarly,
  kFreedTooEarly,
  kFreedTwice,
  kHostReadsDevice,
  kCopyFromTheWrongSide,
  kCopyPastTheAllocation,
  kNumWrong,
};

inline constexpr std::string_view kWrongNames[] = {"nothing",
                                                   "no barrier after write",
                                                   "no barrier before reuse",
                                                   "barrier in a branch",
                                                   "barrier skipped by a warp",
                                                   "shuffle of half a warp",
                                                   "lane outside its mask",
                                                   "shuffle from an absent lane",
                                                   "no syncwarp",
                                                   "shared overrun",
                                                   "shared uninitialised",
                                                   "global read overrun",
                                                   "global write overrun",
                                                   "copy not awaited",
                                                   "copy awaited too little",
                                                   "no barrier after copies",
                                                   "no barrier before next copy",
                                                   "blocks write one place",
                                                   "no atomic",
                                                   "no dynamic shared",
                                                   "no event before kernel",
                                                   "no event before copy",
                                                   "event recorded too early",
                                                   "host slot used again",
                                                   "result read too early",
                                                   "freed too early",
                                                   "freed twice",
                                                   "host reads device",
                                                   "copy from the wrong side",
                                                   "copy past the allocation"};
static_assert(std::size(kWrongNames) == static_cast<size_t>(Wrong::kNumWrong));
constexpr std::string_view NameOf(Wrong wrong) {
  return kWrongNames[static_cast<size_t>(wrong)];
}

// The kernels; `wrong` may be one of theirs.
namespace wrong_kernels {
constexpr int kThreads = 64;
constexpr int kTileElems = 256;
// sums[block] of [num_blocks * num_elems] values, each block twice over through shared memory;
// count: the blocks that have finished.
cudaError_t SumBlocks(Wrong wrong, float* sums, unsigned* count, const float* values, int num_elems,
                      int num_blocks, cudaStream_t stream);
// to[i] = from[i ^ 1], kThreads values.
cudaError_t SwapNeighbours(Wrong wrong, float* to, const float* from, cudaStream_t stream);
// The sum over tiles of `kTileElems` values that come by asynchronous copies, in reverse: to[i] is
// the sum of element kTileElems - 1 - i of each.
cudaError_t SumTiles(Wrong wrong, float* to, const float* tiles, int num_tiles,
                     cudaStream_t stream);
// sum[i] += factor * values[i]
cudaError_t AddScaled(float* sum, const float* values, int num_elems, float factor,
                      cudaStream_t stream);
}  // namespace wrong_kernels

}  // namespace forebay
