// Updates on a GPU, with the bits of UpdateRunRef.
#pragma once

#include "absl/status/status.h"
#include "forebay/optimizer/kernels/tile_update.h"

namespace forebay {

// Enqueues one update on `cuda_stream` (a cudaStream_t). Called by Stream::Launch
// (device/device.h), since a launch takes the calling thread's device, which has to be the
// stream's. The planes of `run` are device memory, aligned to their elements, borrowed until the
// stream has done the update. EnvironmentError when the launch fails, or when this forebay was
// built without CUDA. Requires: as UpdateRun.
absl::Status UpdateRunCuda(const OptimizerConfig& config, const UpdateScalars& scalars,
                           const TileRun& run, void* cuda_stream);

}  // namespace forebay
