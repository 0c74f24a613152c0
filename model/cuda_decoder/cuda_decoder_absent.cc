#include "forebay/base/errors.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<CudaDecoder>> CreateCudaDecoder(
    const DecoderConfig& /*config*/, const CudaDecoderOptions& /*options*/, Device* /*device*/,
    MemoryBudget* /*device_budget*/, MemoryBudget* /*host_budget*/) {
  return EnvironmentError(
      "this build has no CUDA code. Build it where nvcc is, or use --device=cpu");
}

}  // namespace forebay
