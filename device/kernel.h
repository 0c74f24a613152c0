// Kernels include this: CUDA as nvcc knows it, or its twin on the host (emulation/kernel_twin.h),
// as the compiler is.
//
// Kernels keep to what both have: blocks of whole warps, shared memory by FOREBAY_SHARED and
// FOREBAY_DYNAMIC_SHARED, __syncthreads and its votes, __syncwarp, shuffles and votes with a mask
// that names every lane which takes part, launches by LaunchKernel.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#ifdef __CUDACC__

// FOREBAY_SHARED(float, sums, [32]); declares an array in shared memory.
#define FOREBAY_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
// A pointer to what the launch asked for, 16-byte aligned.
#define FOREBAY_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char forebay_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(forebay_dynamic_shared)

namespace forebay {

// Enqueues kernel(arguments...) on `stream`, and returns the error of the launch alone.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Arguments&&... arguments) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (shared_bytes > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace forebay

#else
#include "forebay/device/emulation/kernel_twin.h"
#endif
