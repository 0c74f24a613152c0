#include "forebay/device/cuda_error.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/device/cuda_info.h"

namespace forebay {
namespace {

std::string AdviceOn(cudaError_t error) {
  switch (error) {
    // The context is lost, and with it what was in the GPU's memory.
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
      return "The GPU is lost to this process: look for 'Xid' in the kernel log (dmesg), and free "
             "or reset it (nvidia-smi --gpu-reset) or restart the machine. A training run goes on "
             "from its last saved step with --resume, also without the GPU (--device=cpu)";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return fmt::format(
          "Install NVIDIA's driver {} or newer, or run without the GPU (--device=cpu)",
          OldestDriverFor(CUDART_VERSION));
    case cudaErrorNoDevice:
      return "Look at 'nvidia-smi' and CUDA_VISIBLE_DEVICES, or run without the GPU (--device=cpu)";
    default:
      return "Look at 'nvidia-smi' and the kernel log, or run without the GPU (--device=cpu)";
  }
}

}  // namespace

absl::Status CudaError(std::string_view what, cudaError_t error) {
  cudaGetLastError();
  return EnvironmentError(fmt::format("{} failed: {} ({}). {}", what, cudaGetErrorName(error),
                                      cudaGetErrorString(error), AdviceOn(error)));
}

}  // namespace forebay
