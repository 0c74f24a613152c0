// The bus between host and GPU, as forebay uses it and as it is.
#pragma once

#include "absl/status/statusor.h"
#include "forebay/bench/cuda_ops/bench_gpu.h"

namespace forebay {

struct CopyRates {  // bytes per second
  double to_device = 0;
  double to_host = 0;
  double both = 0;  // in both directions at a time, together
};

// One copy of a large pinned buffer in each direction.
absl::StatusOr<CopyRates> MeasureRawCopies(BenchGpu& gpu);
// Layers out of and into HostBuffers, one after another, with an event behind each: as
// step/gpu_window.h and optimizer/gradient_landing.h do it.
absl::StatusOr<CopyRates> MeasureLayerCopies(BenchGpu& gpu);

}  // namespace forebay
