// In place of adamw.cu where there is no CUDA compiler.
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/adamw_cuda.h"

namespace forebay {

absl::Status AdamWCuda(const AdamWConfig&, const AdamWStep&, const AdamWTile&, void*) {
  return EnvironmentError(
      "this forebay was built without CUDA. Build it where nvcc is found (-DFOREBAY_CUDA=ON), or "
      "run on the CPU");
}

}  // namespace forebay
