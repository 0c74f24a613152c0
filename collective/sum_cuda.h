// SumInRankOrder on a GPU, with its bits.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace forebay {

// The most ranks that a launch can name.
inline constexpr int kMostRanksOfSumCuda = 256;

// Enqueues it on `cuda_stream` (a cudaStream_t); called by Stream::Launch. All addresses but
// `values` itself are device memory, borrowed until the stream has done it. EnvironmentError when
// the launch fails. Requires: values.size() <= kMostRanksOfSumCuda.
absl::Status SumInRankOrderCuda(std::span<const float* const> values, float* sum, int64_t num_elems,
                                void* cuda_stream);

}  // namespace forebay
