#include "forebay/tests/device/cudart_twin.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

thread_local int current_device = 0;
int64_t num_records = 0;

forebay::CudartTwin& Called(const char* name) {
  forebay::CudartTwin& twin = forebay::TheCudartTwin();
  twin.calls.emplace(name, current_device);
  return twin;
}

template <typename Object>
void CalledWith(const char* name, const Object* object) {
  if (object->device != current_device) ++forebay::TheCudartTwin().num_misplaced;
  Called(name);
}

}  // namespace

// The handles of the runtime's header point to these.
struct CUstream_st {
  int device;
};
struct CUevent_st {
  int device;
  int64_t number;  // of its record
};

namespace forebay {

CudartTwin& TheCudartTwin() {
  static CudartTwin twin;
  return twin;
}

}  // namespace forebay

extern "C" {

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "a name";
}
const char* cudaGetErrorString(cudaError_t) {
  return "a reason";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = forebay::kNumTwinDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "twin");
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (forebay::TheCudartTwin().refuses_to_select) return cudaErrorDevicesUnavailable;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  Called("stream create");
  *stream = new CUstream_st{current_device};
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  CalledWith("stream destroy", stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CalledWith("stream synchronize", stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned int) {
  CalledWith("stream wait", stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  Called("event create");
  *event = new CUevent_st{current_device, 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  CalledWith("event destroy", event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CalledWith("event synchronize", event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  CalledWith("event query", event);
  return forebay::TheCudartTwin().is_busy ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CalledWith("event record", stream);
  event->number = ++num_records;
  return cudaSuccess;
}
// A second from one record to the next.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  CalledWith("event elapsed", end);
  *ms = 1000.0f * static_cast<float>(end->number - start->number);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t size_bytes) {
  Called("malloc");
  *address = std::malloc(size_bytes);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  Called("free");
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Called("memory");
  *free_bytes = 1000 + static_cast<size_t>(current_device);
  *total_bytes = 5000;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  CalledWith("copy", stream);
  std::memcpy(to, from, size_bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  CalledWith("fill", stream);
  std::memset(to, value, size_bytes);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned int) {
  Called("pin");
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void*) {
  Called("unpin");
  return cudaSuccess;
}

}  // extern "C"
