// The functions of the CUDA runtime that forebay calls, on the emulated GPU: linked in place of it.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "forebay/device/emulation/grid.h"
#include "forebay/device/emulation/hardware_accesses.h"
#include "forebay/device/emulation/kernel_twin.h"
#include "forebay/device/emulation/runtime.h"

namespace forebay::emulation {
namespace {

// No power of two: grids that take it for one show.
constexpr int kNumMultiprocessors = 3;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_gpu = 0;

cudaError_t Give(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

struct ErrorNames {
  const char* name;
  const char* text;
};
ErrorNames NamesOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorInvalidResourceHandle:
      return {"cudaErrorInvalidResourceHandle", "invalid resource handle"};
    case cudaErrorInvalidConfiguration:
      return {"cudaErrorInvalidConfiguration", "invalid configuration argument"};
    case cudaErrorInsufficientDriver:
      return {"cudaErrorInsufficientDriver",
              "CUDA driver version is insufficient for CUDA runtime version"};
    case cudaErrorNoDevice:
      return {"cudaErrorNoDevice", "no CUDA-capable device is detected"};
    case cudaErrorDevicesUnavailable:
      return {"cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"};
    case cudaErrorECCUncorrectable:
      return {"cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"};
    default:
      return {"cudaError", "an error of the emulated GPU"};
  }
}

// Calls that a GPU takes part in begin with this: the error of one that is lost by now.
cudaError_t CallGpu() {
  const auto num_calls = static_cast<uint64_t>(++TheGpu().counters.num_calls);
  const int lost = TheOptions().lost_gpu;
  const bool may_be_lost = lost < 0 || lost == current_gpu;
  if (!may_be_lost || num_calls <= TheOptions().lost_after) return cudaSuccess;
  TheGpu().streams.Abandon(current_gpu);
  return Give(TheOptions().lost_by == Loss::kEcc ? cudaErrorECCUncorrectable
                                                 : cudaErrorDevicesUnavailable);
}

bool IsGpu(int device) {
  return device >= 0 && device < TheOptions().num_gpus;
}

uint64_t NumberOf(int gpu) {
  const uint64_t first = TheOptions().gpu_number;
  if (first > 0) return first + static_cast<uint64_t>(gpu);
  return (static_cast<uint64_t>(::getpid()) << 32) + static_cast<uint64_t>(gpu);
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
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  if (stream->gpu != current_gpu) return Give(cudaErrorInvalidResourceHandle);
  const cudaError_t error = CheckShape(grid, block, shared_bytes);
  if (error != cudaSuccess) return Give(error);
  ++TheGpu().counters.num_launches;
  TheGpu().streams.Enqueue(
      stream,
      {.run = [=, thread = std::move(thread)] { RunGrid(grid, block, shared_bytes, thread); },
       .seconds = kLaunchSeconds});
  return cudaSuccess;
}

cudaError_t EnqueueWork(cudaStream_t stream, std::function<void()> work, double seconds) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  if (stream->gpu != current_gpu) return Give(cudaErrorInvalidResourceHandle);
  ++TheGpu().counters.num_launches;
  TheGpu().streams.Enqueue(stream, {.run = std::move(work), .seconds = seconds});
  return cudaSuccess;
}

}  // namespace forebay::emulation

using forebay::emulation::CallGpu;
using forebay::emulation::CopyBytes;
using forebay::emulation::current_gpu;
using forebay::emulation::FillBytes;
using forebay::emulation::Give;
using forebay::emulation::Gpu;
using forebay::emulation::IsGpu;
using forebay::emulation::IsPinned;
using forebay::emulation::kCopySeconds;
using forebay::emulation::kCopySecondsPerByte;
using forebay::emulation::kLaunchSeconds;
using forebay::emulation::Locked;
using forebay::emulation::NumberOf;
using forebay::emulation::Options;
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
  *count = 0;
  if (TheOptions().driver == Options::Driver::kOld) return Give(cudaErrorInsufficientDriver);
  if (TheOptions().driver == Options::Driver::kNone) return Give(cudaErrorNoDevice);
  *count = TheOptions().num_gpus;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!IsGpu(device)) return Give(cudaErrorInvalidDevice);
  current_gpu = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!IsGpu(device)) return Give(cudaErrorInvalidDevice);
  *properties = {};
  const uint64_t id[] = {NumberOf(device), 0};
  static_assert(sizeof(id) == sizeof(properties->uuid));
  std::memcpy(&properties->uuid, id, sizeof(id));
  std::snprintf(properties->name, sizeof(properties->name), "%s",
                device == TheOptions().other_gpu ? "another emulated GPU" : "emulated GPU");
  properties->major = TheOptions().capability / 10;
  properties->minor = TheOptions().capability % 10;
  properties->multiProcessorCount = forebay::emulation::kNumMultiprocessors;
  properties->totalGlobalMem = TheOptions().gpu_bytes;
  properties->sharedMemPerBlock = size_t{48} << 10;
  properties->sharedMemPerBlockOptin = TheOptions().most_shared_bytes;
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!IsGpu(device) || attribute != cudaDevAttrComputeCapabilityMajor) {
    return Give(cudaErrorInvalidValue);
  }
  *value = TheOptions().capability / 10;
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
  return forebay::emulation::NamesOf(error).name;
}
const char* cudaGetErrorString(cudaError_t error) {
  return forebay::emulation::NamesOf(error).text;
}

// ---- Memory ------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** address, size_t size) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  return Give(TheGpu().memory.Allocate(address, size));
}
cudaError_t cudaFree(void* address) {
  const Locked locked;
  ++TheGpu().counters.num_device_waits;
  const cudaError_t lost = CallGpu();
  TheGpu().memory.Free(address);
  return lost;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  *free_bytes = TheGpu().memory.free_bytes();
  *total_bytes = TheOptions().gpu_bytes;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned int /*flags*/) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  if (IsPinned(address, size)) return Give(cudaErrorHostMemoryAlreadyRegistered);
  TheGpu().pinned[static_cast<const char*>(address)] = size;
  TheGpu().counters.pinned_bytes += static_cast<int64_t>(size);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const Locked locked;
  const cudaError_t lost = CallGpu();
  const auto it = TheGpu().pinned.find(static_cast<const char*>(address));
  if (it == TheGpu().pinned.end()) return Give(cudaErrorHostMemoryNotRegistered);
  TheGpu().counters.pinned_bytes -= static_cast<int64_t>(it->second);
  TheGpu().pinned.erase(it);
  return lost;
}

// ---- Streams and events ------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  *stream = TheGpu().streams.Create(current_gpu);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Locked locked;
  const cudaError_t lost = CallGpu();
  TheGpu().streams.Destroy(stream);
  return lost;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  TheGpu().streams.Await(TheGpu().streams.Record(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  if (event->point == nullptr) return cudaSuccess;
  TheGpu().streams.Enqueue(stream, {.run = {}, .waits_for = event->point});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  *event = new CUevent_st{nullptr, (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Locked locked;
  const cudaError_t lost = CallGpu();
  delete event;
  return lost;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  event->point = TheGpu().streams.Record(stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  TheGpu().streams.Await(event->point);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  TheGpu().streams.MayRun();
  // A GPU gets there while it is asked again and again, however lazy it is.
  constexpr int kMostQueries = 64;
  auto* const point = event->point.get();
  const bool is_reached = point == nullptr || point->is_reached;
  if (!is_reached && ++point->num_queries < kMostQueries) return Give(cudaErrorNotReady);
  TheGpu().streams.Await(event->point);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  if (!start->is_timed || !end->is_timed || start->point == nullptr || end->point == nullptr) {
    return Give(cudaErrorInvalidResourceHandle);
  }
  if (!start->point->is_reached || !end->point->is_reached) return Give(cudaErrorNotReady);
  *ms = static_cast<float>(1e3 * (end->point->reached_at_s - start->point->reached_at_s));
  return cudaSuccess;
}

// ---- Copies ------------------------------------------------------------------------------------

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
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
  gpu.streams.Enqueue(stream,
                      {.run = [=] { CopyBytes(to, from, size); },
                       .seconds = kCopySeconds + static_cast<double>(size) * kCopySecondsPerByte});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  const Locked locked;
  if (const cudaError_t lost = CallGpu(); lost != cudaSuccess) return lost;
  TheGpu().memory.CheckIsDevice(to, size, "cudaMemsetAsync");
  TheGpu().streams.Enqueue(stream,
                           {.run = [=] { FillBytes(to, value, size); }, .seconds = kLaunchSeconds});
  return cudaSuccess;
}

}  // extern "C"
