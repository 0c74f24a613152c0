// In place of cuda_device.cc and cuda_info.cc where there is no CUDA compiler.
#include "forebay/base/errors.h"
#include "forebay/device/cuda_info.h"
#include "forebay/device/device.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int) {
  return EnvironmentError(
      "this forebay was built without CUDA. Build it where nvcc is found (-DFOREBAY_CUDA=ON), or "
      "run on the CPU");
}

CudaInfo AskCuda() {
  return {};
}

}  // namespace forebay
