#include "forebay/device/cuda_info.h"

#include <cuda_runtime.h>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/device/cublaslt.h"
#include "forebay/device/cuda_error.h"
#include "forebay/device/device.h"

namespace forebay {
namespace {

GpuInfo AskOne(int index) {
  GpuInfo gpu;
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
    gpu.name = properties.name;
    gpu.capability_major = properties.major;
    gpu.capability_minor = properties.minor;
    gpu.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  }
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateCudaDevice(index);
  const absl::StatusOr<DeviceMemory> memory =
      device.ok() ? (*device)->Memory() : absl::StatusOr<DeviceMemory>(device.status());
  if (memory.ok()) {
    gpu.free_bytes = memory->free_bytes;
  } else {
    gpu.why_no_memory = MessageOf(memory.status());
  }
  return gpu;
}

}  // namespace

CudaInfo AskCudaLibraries() {
  CudaInfo info = {.is_built_in = true};
  cudaRuntimeGetVersion(&info.runtime_version);
  cudaDriverGetVersion(&info.driver_version);
  const absl::StatusOr<std::string> file = CublasLtFile();
  if (file.ok()) {
    info.cublaslt_file = *file;
  } else {
    info.why_no_cublaslt = MessageOf(file.status());
  }
  return info;
}

CudaInfo AskCuda() {
  CudaInfo info = AskCudaLibraries();
  int num_gpus = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&num_gpus); error != cudaSuccess) {
    cudaGetLastError();  // or the next caller would stumble over it
    info.why_no_gpu = cudaGetErrorString(error);
    num_gpus = 0;
  }
  for (int index = 0; index < num_gpus; ++index) info.gpus.push_back(AskOne(index));
  return info;
}

absl::StatusOr<GpuOfProcess> PickGpu(int local_rank) {
  GpuOfProcess gpu;
  if (const cudaError_t error = cudaGetDeviceCount(&gpu.num_gpus); error != cudaSuccess) {
    return CudaError("no usable GPU: looking for one", error);
  }
  gpu.index = local_rank % gpu.num_gpus;
  cudaDeviceProp properties = {};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, gpu.index);
      error != cudaSuccess) {
    return CudaError("asking for the GPU's properties", error);
  }
  for (const char byte : properties.uuid.bytes) {
    gpu.id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return gpu;
}

}  // namespace forebay
