// The functions of the CUDA runtime that forebay calls, on the emulated GPU: linked in place of it.
#include <cuda_runtime.h>

#include <cstdio>
#include <utility>

#include "forebay/device/emulation/grid.h"
#include "forebay/device/emulation/hardware_accesses.h"
#include "forebay/device/emulation/kernel_twin.h"
#include "forebay/device/emulation/runtime.h"

namespace forebay::emulation {
namespace {

// No power of two: grids that take it for one show.
constexpr int kNumMultiprocessors = 3;
constexpr int kCapabilityMajor = 8;
constexpr int kCapabilityMinor = 0;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Give(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// True where a part of it is.
bool IsPinned(const void* address, size_t size) {
  const auto* const begin = static_cast<const char*>(address);
  const auto& pinned = TheGpu().pinned;
  auto next = pinned.lower_bound(begin);
  if (next != pinned.end() && next->first < begin + size) return true;
  return next != pinned.begin() && (--next)->first + next->second > begin;
}

}  // namespace

cudaError_t EnqueueGrid(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                        std::function<void()> thread) {
  const Locked locked;
  const cudaError_t error = CheckShape(grid, block, shared_bytes);
  if (error != cudaSuccess) return Give(error);
  ++TheGpu().counters.num_launches;
  TheGpu().streams.Enqueue(stream, {.run = [=, thread = std::move(thread)] {
                             RunGrid(grid, block, shared_bytes, thread);
                           }});
  return cudaSuccess;
}

void EnqueueWork(cudaStream_t stream, std::function<void()> work) {
  const Locked locked;
  ++TheGpu().counters.num_launches;
  TheGpu().streams.Enqueue(stream, {.run = std::move(work)});
}

}  // namespace forebay::emulation

using forebay::emulation::CopyBytes;
using forebay::emulation::FillBytes;
using forebay::emulation::Give;
using forebay::emulation::Gpu;
using forebay::emulation::IsPinned;
using forebay::emulation::Locked;
using forebay::emulation::TheGpu;
using forebay::emulation::TheOptions;

extern "C" {

// ---- Devices -----------------------------------------------------------------------------------

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return Give(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return Give(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  properties->major = forebay::emulation::kCapabilityMajor;
  properties->minor = forebay::emulation::kCapabilityMinor;
  properties->multiProcessorCount = forebay::emulation::kNumMultiprocessors;
  properties->totalGlobalMem = TheOptions().gpu_bytes;
  properties->sharedMemPerBlock = size_t{48} << 10;
  properties->sharedMemPerBlockOptin = TheOptions().most_shared_bytes;
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0 || attribute != cudaDevAttrComputeCapabilityMajor) {
    return Give(cudaErrorInvalidValue);
  }
  *value = forebay::emulation::kCapabilityMajor;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Locked locked;
  ++TheGpu().counters.num_device_waits;
  TheGpu().streams.AwaitAll();
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(forebay::emulation::last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation       ? "cudaErrorMemoryAllocation"
         : error == cudaErrorInvalidDevice        ? "cudaErrorInvalidDevice"
         : error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration"
                                                  : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation       ? "out of memory"
         : error == cudaErrorInvalidDevice        ? "invalid device ordinal"
         : error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                  : "an error of the emulated GPU";
}

// ---- Memory ------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** address, size_t size) {
  const Locked locked;
  return Give(TheGpu().memory.Allocate(address, size));
}
cudaError_t cudaFree(void* address) {
  const Locked locked;
  ++TheGpu().counters.num_device_waits;
  TheGpu().memory.Free(address);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Locked locked;
  *free_bytes = TheGpu().memory.free_bytes();
  *total_bytes = TheOptions().gpu_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned int /*flags*/) {
  const Locked locked;
  if (IsPinned(address, size)) return Give(cudaErrorHostMemoryAlreadyRegistered);
  TheGpu().pinned[static_cast<const char*>(address)] = size;
  TheGpu().counters.pinned_bytes += static_cast<int64_t>(size);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const Locked locked;
  const auto it = TheGpu().pinned.find(static_cast<const char*>(address));
  if (it == TheGpu().pinned.end()) return Give(cudaErrorHostMemoryNotRegistered);
  TheGpu().counters.pinned_bytes -= static_cast<int64_t>(it->second);
  TheGpu().pinned.erase(it);
  return cudaSuccess;
}

// ---- Streams and events ------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  const Locked locked;
  *stream = TheGpu().streams.Create();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Locked locked;
  TheGpu().streams.Destroy(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Locked locked;
  TheGpu().streams.Await(TheGpu().streams.Record(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  const Locked locked;
  if (event->point == nullptr) return cudaSuccess;
  TheGpu().streams.Enqueue(stream, {.run = {}, .waits_for = event->point});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const Locked locked;
  *event = new CUevent_st{nullptr, (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Locked locked;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Locked locked;
  event->point = TheGpu().streams.Record(stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Locked locked;
  TheGpu().streams.Await(event->point);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Locked locked;
  TheGpu().streams.MayRun();
  if (event->point != nullptr && !event->point->is_reached) return Give(cudaErrorNotReady);
  TheGpu().streams.Await(event->point);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const Locked locked;
  if (!start->is_timed || !end->is_timed || start->point == nullptr || end->point == nullptr) {
    return Give(cudaErrorInvalidResourceHandle);
  }
  if (!start->point->is_reached || !end->point->is_reached) return Give(cudaErrorNotReady);
  const std::chrono::duration<float, std::milli> elapsed =
      end->point->reached_at - start->point->reached_at;
  *ms = elapsed.count();
  return cudaSuccess;
}

// ---- Copies ------------------------------------------------------------------------------------

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Locked locked;
  Gpu& gpu = TheGpu();
  if (kind == cudaMemcpyHostToDevice) {
    gpu.memory.CheckIsHost(from, "cudaMemcpyAsync from");
    gpu.counters.to_device_bytes += static_cast<int64_t>(size);
  } else {
    gpu.memory.CheckIsDevice(from, size, "cudaMemcpyAsync from");
  }
  if (kind == cudaMemcpyDeviceToHost) {
    gpu.memory.CheckIsHost(to, "cudaMemcpyAsync to");
    gpu.counters.to_host_bytes += static_cast<int64_t>(size);
  } else {
    gpu.memory.CheckIsDevice(to, size, "cudaMemcpyAsync to");
  }
  if (kind != cudaMemcpyDeviceToDevice &&
      !IsPinned(kind == cudaMemcpyHostToDevice ? from : to, size)) {
    gpu.counters.unpinned_copy_bytes += static_cast<int64_t>(size);
  }
  gpu.streams.Enqueue(stream, {.run = [=] { CopyBytes(to, from, size); }});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  const Locked locked;
  TheGpu().memory.CheckIsDevice(to, size, "cudaMemsetAsync");
  TheGpu().streams.Enqueue(stream, {.run = [=] { FillBytes(to, value, size); }});
  return cudaSuccess;
}

}  // extern "C"
