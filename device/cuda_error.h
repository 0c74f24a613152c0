// Errors of the CUDA runtime as a status that says the way out.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "absl/status/status.h"

namespace forebay {

// "`what` failed: ...": an EnvironmentError. The runtime, which keeps its last error for the next
// caller to stumble over, forgets it. Requires: `error` is one.
absl::Status CudaError(std::string_view what, cudaError_t error);

}  // namespace forebay
