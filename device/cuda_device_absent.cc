// In place of cuda_device.cc and cuda_info.cc where there is no CUDA compiler.
#include "forebay/base/errors.h"
#include "forebay/device/cuda_info.h"
#include "forebay/device/device.h"

namespace forebay {

namespace {

absl::Status NoCuda() {
  return EnvironmentError(
      "this forebay was built without CUDA. Build it where nvcc is found (-DFOREBAY_CUDA=ON), or "
      "run on the CPU");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int) {
  return NoCuda();
}

absl::StatusOr<GpuOfProcess> PickGpu(int) {
  return NoCuda();
}

CudaInfo AskCudaLibraries() {
  return {};
}

CudaInfo AskCuda() {
  return {};
}

}  // namespace forebay
