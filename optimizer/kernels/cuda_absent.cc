// In place of the .cu files where there is no CUDA compiler.
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/round_gradient_cuda.h"
#include "forebay/optimizer/kernels/update_cuda.h"

namespace forebay {
namespace {

absl::Status Absent() {
  return EnvironmentError(
      "this forebay was built without CUDA. Build it where nvcc is found (-DFOREBAY_CUDA=ON), or "
      "run on the CPU");
}

}  // namespace

absl::Status UpdateRunCuda(const OptimizerConfig&, const UpdateScalars&, const TileRun&, void*) {
  return Absent();
}

absl::Status RoundGradientCuda(const float*, int64_t, DType, void*, double*, void*) {
  return Absent();
}

}  // namespace forebay
