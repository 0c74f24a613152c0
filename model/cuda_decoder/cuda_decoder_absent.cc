#include "forebay/base/errors.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/cuda_decoder/cuda_sequences.h"

namespace forebay {
namespace {

absl::Status NoCudaCode() {
  return EnvironmentError(
      "this build has no CUDA code. Build it where nvcc is, or use --device=cpu");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDecoder>> CreateCudaDecoder(
    const DecoderConfig& /*config*/, const CudaDecoderOptions& /*options*/, Device* /*device*/,
    MemoryBudget* /*device_budget*/, MemoryBudget* /*host_budget*/,
    MatmulAlgorithms* /*algorithms*/) {
  return NoCudaCode();
}

absl::StatusOr<std::unique_ptr<Sequences>> CreateCudaSequences(
    const DecoderConfig& /*config*/, const CudaSequencesOptions& /*options*/, Device* /*device*/,
    MemoryBudget* /*device_budget*/, MemoryBudget* /*host_budget*/) {
  return NoCudaCode();
}

}  // namespace forebay
