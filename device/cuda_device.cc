// CUDA behind device.h, by the runtime API alone (linked statically, so that one binary runs where
// there is no driver).
#include <cuda_runtime.h>

#include <string_view>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/device/device.h"

namespace forebay {
namespace {

absl::Status CudaError(std::string_view what, cudaError_t error) {
  // The runtime keeps the last error for the next caller to stumble over.
  cudaGetLastError();
  return EnvironmentError(
      fmt::format("{} failed: {} ({}). Look at 'nvidia-smi' and the kernel log, "
                  "or run without the GPU",
                  what, cudaGetErrorName(error), cudaGetErrorString(error)));
}

absl::Status Check(std::string_view what, cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : CudaError(what, error);
}

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  absl::Status Await() override {
    return Check("waiting for an event", cudaEventSynchronize(event_));
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaStream : public Stream {
 public:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  ~CudaStream() override {
    // Errors were reported to whoever awaited; here only the borrowed memory matters.
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  absl::Status CopyToDevice(void* to, std::span<const std::byte> from) override {
    return Check("copying to the GPU",
                 cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
  }
  absl::Status CopyToHost(std::span<std::byte> to, const void* from) override {
    return Check("copying from the GPU",
                 cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_));
  }
  absl::Status Fill(void* to, std::byte value, int64_t size_bytes) override {
    return Check("filling GPU memory", cudaMemsetAsync(to, std::to_integer<int>(value),
                                                       static_cast<size_t>(size_bytes), stream_));
  }
  absl::Status Record(Event& event) override {
    auto* const cuda_event = dynamic_cast<CudaEvent*>(&event);
    FOREBAY_CHECK(cuda_event != nullptr);
    return Check("recording an event", cudaEventRecord(cuda_event->get(), stream_));
  }
  absl::Status WaitFor(const Event& event) override {
    const auto* const cuda_event = dynamic_cast<const CudaEvent*>(&event);
    FOREBAY_CHECK(cuda_event != nullptr);
    return Check("waiting for another stream", cudaStreamWaitEvent(stream_, cuda_event->get()));
  }
  absl::Status Await() override {
    return Check("waiting for a stream", cudaStreamSynchronize(stream_));
  }
  void* native_handle() const override { return stream_; }

 private:
  cudaStream_t stream_;
};

// Every call selects the device first, since the runtime's choice belongs to the calling thread.
class CudaDevice : public Device {
 public:
  CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return fmt::format("{} (CUDA device {})", name_, index_); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    FOREBAY_RETURN_IF_ERROR(Select());
    cudaStream_t stream = nullptr;
    // Non-blocking: no implicit order with the default stream, which anybody may use.
    FOREBAY_RETURN_IF_ERROR(
        Check("creating a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return std::make_unique<CudaStream>(stream);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    FOREBAY_RETURN_IF_ERROR(Select());
    cudaEvent_t event = nullptr;
    FOREBAY_RETURN_IF_ERROR(
        Check("creating an event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return std::make_unique<CudaEvent>(event);
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t size_bytes) override {
    FOREBAY_RETURN_IF_ERROR(Select());
    void* address = nullptr;
    const cudaError_t error = cudaMalloc(&address, static_cast<size_t>(size_bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      FOREBAY_RETURN_IF_ERROR(
          Check("asking for free GPU memory", cudaMemGetInfo(&free_bytes, &total_bytes)));
      return OutOfMemoryError(fmt::format(
          "{} could not be allocated on {}: {} of {} are free. Use a smaller batch or another GPU",
          FormatBytes(size_bytes), name(), FormatBytes(static_cast<int64_t>(free_bytes)),
          FormatBytes(static_cast<int64_t>(total_bytes))));
    }
    FOREBAY_RETURN_IF_ERROR(Check("allocating GPU memory", error));
    return address;
  }
  void FreeBytes(void* address) override { cudaFree(address); }
  absl::Status PinBytes(std::span<std::byte> memory) override {
    FOREBAY_RETURN_IF_ERROR(Select());
    return Check(
        fmt::format("pinning {} of host memory", FormatBytes(static_cast<int64_t>(memory.size()))),
        cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable));
  }
  void UnpinBytes(std::span<std::byte> memory) override { cudaHostUnregister(memory.data()); }

 private:
  absl::Status Select() const {
    return Check(fmt::format("selecting CUDA device {}", index_), cudaSetDevice(index_));
  }

  const int index_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index) {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) {
    cudaGetLastError();
    return EnvironmentError(
        fmt::format("no usable GPU: {}. Install NVIDIA's driver, or run on the CPU",
                    cudaGetErrorString(error)));
  }
  FOREBAY_RETURN_IF_ERROR(Check("counting GPUs", error));
  if (index < 0 || index >= num_devices) {
    return EnvironmentError(fmt::format(
        "there is no CUDA device {}: {} found. Look at CUDA_VISIBLE_DEVICES", index, num_devices));
  }
  cudaDeviceProp properties = {};
  FOREBAY_RETURN_IF_ERROR(
      Check("asking for the GPU's properties", cudaGetDeviceProperties(&properties, index)));
  return std::make_unique<CudaDevice>(index, properties.name);
}

}  // namespace forebay
