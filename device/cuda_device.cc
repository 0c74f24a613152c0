// CUDA behind device.h, by the runtime API alone (linked statically, so that one binary runs where
// there is no driver).
#include <cuda_runtime.h>

#include <functional>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/device/cuda_error.h"
#include "forebay/device/device.h"

namespace forebay {
namespace {

absl::Status Check(std::string_view what, cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : CudaError(what, error);
}

// Selects a device for the calling thread, and at the end of the scope the one before.
class OnDevice {
 public:
  explicit OnDevice(int index)
      : status_(Check("asking for the current CUDA device", cudaGetDevice(&before_))) {
    if (!status_.ok() || before_ == index) return;
    const cudaError_t error = cudaSetDevice(index);
    is_changed_ = error == cudaSuccess;
    if (!is_changed_) status_ = CudaError(fmt::format("selecting CUDA device {}", index), error);
  }
  ~OnDevice() {
    if (is_changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  int before_ = 0;
  bool is_changed_ = false;
  absl::Status status_;
};

// `call`, which gives a cudaError_t, on the device. `what`: as Check's.
template <typename Call>
absl::Status CallOn(int index, std::string_view what, const Call& call) {
  const OnDevice on_device(index);
  FOREBAY_RETURN_IF_ERROR(on_device.status());
  return Check(what, call());
}

class CudaEvent : public Event {
 public:
  CudaEvent(int index, cudaEvent_t event, bool is_timed)
      : index_(index), event_(event), is_timed_(is_timed) {}
  ~CudaEvent() override {
    const OnDevice on_device(index_);
    cudaEventDestroy(event_);
  }
  absl::Status Await() override {
    return CallOn(index_, "waiting for an event", [&] { return cudaEventSynchronize(event_); });
  }
  absl::StatusOr<bool> IsReached() override {
    const OnDevice on_device(index_);
    FOREBAY_RETURN_IF_ERROR(on_device.status());
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // no error, but the runtime may keep it for one
      return false;
    }
    FOREBAY_RETURN_IF_ERROR(Check("asking for an event", error));
    return true;
  }
  absl::StatusOr<double> SecondsSince(Event& first) override {
    auto* const since = dynamic_cast<CudaEvent*>(&first);
    FOREBAY_CHECK(since != nullptr && since->index_ == index_);
    FOREBAY_CHECK(since->is_timed_ && since->is_recorded_ && is_timed_ && is_recorded_);
    FOREBAY_RETURN_IF_ERROR(since->Await());
    FOREBAY_RETURN_IF_ERROR(Await());
    float ms = 0;
    FOREBAY_RETURN_IF_ERROR(CallOn(index_, "asking for the time between two events", [&] {
      return cudaEventElapsedTime(&ms, since->event_, event_);
    }));
    return static_cast<double>(ms) * 1e-3;
  }
  cudaEvent_t get() const { return event_; }
  void SetRecorded() { is_recorded_ = true; }

 private:
  const int index_;
  cudaEvent_t event_;
  const bool is_timed_;
  bool is_recorded_ = false;
};

class CudaStream : public Stream {
 public:
  CudaStream(int index, cudaStream_t stream, bool is_ours)
      : index_(index), stream_(stream), is_ours_(is_ours) {}
  ~CudaStream() override {
    if (!is_ours_) return;
    const OnDevice on_device(index_);
    // Errors were reported to whoever awaited; here only the borrowed memory matters.
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  absl::Status CopyToDevice(void* to, std::span<const std::byte> from) override {
    return CallOn(index_, "copying to the GPU", [&] {
      return cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_);
    });
  }
  absl::Status CopyToHost(std::span<std::byte> to, const void* from) override {
    return CallOn(index_, "copying from the GPU", [&] {
      return cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_);
    });
  }
  absl::Status CopyOnDevice(void* to, const void* from, int64_t size_bytes) override {
    return CallOn(index_, "copying on the GPU", [&] {
      return cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDeviceToDevice,
                             stream_);
    });
  }
  absl::Status Fill(void* to, std::byte value, int64_t size_bytes) override {
    return CallOn(index_, "filling GPU memory", [&] {
      return cudaMemsetAsync(to, std::to_integer<int>(value), static_cast<size_t>(size_bytes),
                             stream_);
    });
  }
  absl::Status Record(Event& event) override {
    auto* const cuda_event = dynamic_cast<CudaEvent*>(&event);
    FOREBAY_CHECK(cuda_event != nullptr);
    FOREBAY_RETURN_IF_ERROR(CallOn(index_, "recording an event",
                                   [&] { return cudaEventRecord(cuda_event->get(), stream_); }));
    cuda_event->SetRecorded();
    return absl::OkStatus();
  }
  absl::Status WaitFor(const Event& event) override {
    const auto* const cuda_event = dynamic_cast<const CudaEvent*>(&event);
    FOREBAY_CHECK(cuda_event != nullptr);
    return CallOn(index_, "waiting for another stream",
                  [&] { return cudaStreamWaitEvent(stream_, cuda_event->get(), 0); });
  }
  absl::Status Await() override {
    return CallOn(index_, "waiting for a stream", [&] { return cudaStreamSynchronize(stream_); });
  }
  absl::Status Launch(absl::FunctionRef<absl::Status(void*)> launch) override {
    const OnDevice on_device(index_);
    FOREBAY_RETURN_IF_ERROR(on_device.status());
    return launch(stream_);
  }

 private:
  const int index_;
  cudaStream_t stream_;
  const bool is_ours_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties)
      : index_(index), name_(properties.name), capability_major_(properties.major) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string card() const override { return name_; }
  bool HasBf16() const override { return capability_major_ >= 8; }
  std::string name() const override { return fmt::format("{} (CUDA device {})", name_, index_); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    cudaStream_t stream = nullptr;
    // Non-blocking: no implicit order with the default stream, which anybody may use.
    FOREBAY_RETURN_IF_ERROR(CallOn(index_, "creating a stream", [&] {
      return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }));
    return std::make_unique<CudaStream>(index_, stream, /*is_ours=*/true);
  }
  std::unique_ptr<Stream> AdoptStream(void* native_stream) override {
    return std::make_unique<CudaStream>(index_, static_cast<cudaStream_t>(native_stream),
                                        /*is_ours=*/false);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return MakeEvent(cudaEventDisableTiming, /*is_timed=*/false);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override {
    return MakeEvent(cudaEventDefault, /*is_timed=*/true);
  }
  absl::StatusOr<DeviceMemory> Memory() override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    FOREBAY_RETURN_IF_ERROR(CallOn(index_, "asking for free GPU memory",
                                   [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); }));
    return DeviceMemory{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t size_bytes) override {
    const OnDevice on_device(index_);
    FOREBAY_RETURN_IF_ERROR(on_device.status());
    void* address = nullptr;
    const cudaError_t error = cudaMalloc(&address, static_cast<size_t>(size_bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      FOREBAY_ASSIGN_OR_RETURN(const DeviceMemory memory, Memory());
      return OutOfMemoryError(fmt::format(
          "{} could not be allocated on {}: {} of {} are free. Use a smaller batch or another GPU",
          FormatBytes(size_bytes), name(), FormatBytes(memory.free_bytes),
          FormatBytes(memory.total_bytes)));
    }
    FOREBAY_RETURN_IF_ERROR(Check("allocating GPU memory", error));
    return address;
  }
  void FreeBytes(void* address) override {
    const OnDevice on_device(index_);
    cudaFree(address);
  }
  absl::Status PinBytes(std::span<std::byte> memory) override {
    return CallOn(
        index_,
        fmt::format("pinning {} of host memory", FormatBytes(static_cast<int64_t>(memory.size()))),
        [&] { return cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable); });
  }
  void UnpinBytes(std::span<std::byte> memory) override {
    const OnDevice on_device(index_);
    cudaHostUnregister(memory.data());
  }

 private:
  absl::StatusOr<std::unique_ptr<Event>> MakeEvent(unsigned int flags, bool is_timed) {
    cudaEvent_t event = nullptr;
    FOREBAY_RETURN_IF_ERROR(CallOn(index_, "creating an event",
                                   [&] { return cudaEventCreateWithFlags(&event, flags); }));
    return std::make_unique<CudaEvent>(index_, event, is_timed);
  }

  const int index_;
  const std::string name_;
  const int capability_major_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index) {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  FOREBAY_RETURN_IF_ERROR(Check("no usable GPU: looking for one", error));
  if (index < 0 || index >= num_devices) {
    return EnvironmentError(fmt::format(
        "there is no CUDA device {}: {} found. Look at CUDA_VISIBLE_DEVICES", index, num_devices));
  }
  cudaDeviceProp properties = {};
  FOREBAY_RETURN_IF_ERROR(
      Check("asking for the GPU's properties", cudaGetDeviceProperties(&properties, index)));
  return std::make_unique<CudaDevice>(index, properties);
}

}  // namespace forebay
