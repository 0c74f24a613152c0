// In place of update.cu where there is no CUDA compiler.
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/update_cuda.h"

namespace forebay {

absl::Status UpdateRunCuda(const OptimizerConfig&, const UpdateScalars&, const TileRun&, void*) {
  return EnvironmentError(
      "this forebay was built without CUDA. Build it where nvcc is found (-DFOREBAY_CUDA=ON), or "
      "run on the CPU");
}

}  // namespace forebay
