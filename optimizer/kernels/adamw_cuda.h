// AdamW on a GPU, with the bits of AdamWRef.
#pragma once

#include "absl/status/status.h"
#include "forebay/optimizer/adamw.h"

namespace forebay {

// Enqueues one AdamW step on `cuda_stream` (a cudaStream_t: Stream::native_handle of
// device/device.h). The planes of `tile` are device memory, aligned to their elements, borrowed
// until the stream has done the step. EnvironmentError when the launch fails, or when this forebay
// was built without CUDA.
absl::Status AdamWCuda(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile,
                       void* cuda_stream);

}  // namespace forebay
