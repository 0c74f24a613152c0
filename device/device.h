// Where computation and its copies run: streams, events, device memory and pinned host memory
// behind one interface, with a twin on the host that is always there. Code written against it runs
// with and without a GPU.
//
// Ordering is by stream and event only; nothing here waits for the whole device.
//
// To CUDA each thread has a current device. Every call here works on the device of its object,
// whichever that is, and leaves it as it was: an embedding program may have chosen it.
//
// Not for: kernels (beside the code that needs them; Stream::Launch calls it), or how much memory
// may be used (memory/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace forebay {

enum class DeviceKind : uint8_t { kHost, kCuda };

class Device;
class StreamTrace;  // stream_trace.h
struct StreamRow;

// Memory of one device, freed by the destructor. Move-only. Every use of it on a stream must be
// complete by then. The device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { Reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)),
        address_(std::exchange(other.address_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  void Reset();

  // An address on the device: the host must not touch it unless the device is the host's twin.
  void* address() const { return address_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(address_);
  }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  friend class Device;
  DeviceBuffer(Device* device, void* address, int64_t size_bytes)
      : device_(device), address_(address), size_bytes_(size_bytes) {}

  Device* device_ = nullptr;
  void* address_ = nullptr;
  int64_t size_bytes_ = 0;
};

// Page-locked host memory: copies to and from it run beside the computation. The memory itself
// stays the caller's and must outlive this, as must the device. Move-only.
class PinnedRegion {
 public:
  PinnedRegion() = default;
  ~PinnedRegion() { Reset(); }
  PinnedRegion(PinnedRegion&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), memory_(std::exchange(other.memory_, {})) {}
  PinnedRegion& operator=(PinnedRegion&& other) noexcept;
  void Reset();
  std::span<std::byte> memory() const { return memory_; }

 private:
  friend class Device;
  PinnedRegion(Device* device, std::span<std::byte> memory) : device_(device), memory_(memory) {}

  Device* device_ = nullptr;
  std::span<std::byte> memory_;
};

// A point in a stream's work. Thread-compatible. Reusable: Record sets a new point.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the caller until the point last recorded is reached; at once when none was.
  // EnvironmentError when the device failed in the work before it.
  virtual absl::Status Await() = 0;
  // Whether it is, without waiting; true when none was recorded. EnvironmentError as of Await.
  virtual absl::StatusOr<bool> IsReached() = 0;
  // From the point of `first` to this one, after waiting for both. EnvironmentError as of Await.
  // Requires: both were made by CreateTimedEvent of one device, and recorded.
  virtual absl::StatusOr<double> SecondsSince(Event& first) = 0;
};

// Work in order. Calls return at once (the host's twin does the work in the call, which is one of
// the allowed orders). Memory named in a call is borrowed until the stream reaches it.
// Thread-compatible. The destructor waits for the work.
class Stream {
 public:
  virtual ~Stream() = default;
  // `size` of `from` bytes to device memory at `to`, and back. Not pinned: correct, but the call
  // may block.
  virtual absl::Status CopyToDevice(void* to, std::span<const std::byte> from) = 0;
  virtual absl::Status CopyToHost(std::span<std::byte> to, const void* from) = 0;
  // Between two places of this device, which do not overlap.
  virtual absl::Status CopyOnDevice(void* to, const void* from, int64_t size_bytes) = 0;
  virtual absl::Status Fill(void* to, std::byte value, int64_t size_bytes) = 0;
  // `event` is reached when everything enqueued here so far is done.
  virtual absl::Status Record(Event& event) = 0;
  // What is enqueued after this starts only when `event` is reached. Requires: an event of a device
  // of the same kind.
  virtual absl::Status WaitFor(const Event& event) = 0;
  // Blocks the caller until all work enqueued so far is done. EnvironmentError when the device
  // failed in it.
  virtual absl::Status Await() = 0;
  // Calls `launch`, which enqueues kernels here, with the cudaStream_t (nullptr on the host) while
  // the stream's device is the current one. Its error, or one of selecting the device.
  virtual absl::Status Launch(absl::FunctionRef<absl::Status(void* native_stream)> launch) = 0;

  // The row of a trace that shows its work; nullptr: none does.
  StreamRow* row() const { return row_; }
  void SetRow(StreamRow* row) { row_ = row; }

 private:
  StreamRow* row_ = nullptr;
};

struct DeviceMemory {
  int64_t free_bytes = 0;  // for whoever comes first
  int64_t total_bytes = 0;
};

// Thread-safe. Must outlive everything that it made.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // "host", "NVIDIA H200 (CUDA device 0)": for logs.
  virtual std::string name() const = 0;
  // The same of every card of the kind: "NVIDIA H200".
  virtual std::string card() const { return name(); }
  // Whether it multiplies matrices of bf16.
  virtual bool HasBf16() const { return true; }

  // Not initialised. OutOfMemoryError with what was asked for and what is free.
  absl::StatusOr<DeviceBuffer> Allocate(int64_t size_bytes);
  // EnvironmentError when the driver refuses. Requires: `memory` is not pinned yet.
  absl::StatusOr<PinnedRegion> Pin(std::span<std::byte> memory);
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  // A stream that somebody else made on this device and keeps: a cudaStream_t, nullptr for CUDA's
  // default stream; the host's twin does not look at it. It outlives what is given, whose
  // destructor does not wait for it.
  virtual std::unique_ptr<Stream> AdoptStream(void* native_stream) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // One that knows when it was reached, and costs the device a little more.
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() = 0;
  // Now. On the host: of the machine, without the limits of a container (memory/ knows those).
  virtual absl::StatusOr<DeviceMemory> Memory() = 0;

  // It has the rows of streams that are made from here on (CreateTracedStream); nullptr: none has.
  StreamTrace* stream_trace() const { return stream_trace_; }
  void SetStreamTrace(StreamTrace* trace) { stream_trace_ = trace; }

 protected:
  virtual absl::StatusOr<void*> AllocateBytes(int64_t size_bytes) = 0;
  virtual void FreeBytes(void* address) = 0;
  virtual absl::Status PinBytes(std::span<std::byte> memory) = 0;
  virtual void UnpinBytes(std::span<std::byte> memory) = 0;

 private:
  friend class DeviceBuffer;
  friend class PinnedRegion;

  StreamTrace* stream_trace_ = nullptr;
};

std::unique_ptr<Device> CreateHostDevice();

// EnvironmentError when this build has no CUDA code, or there is no driver or no GPU `index`; the
// message says which.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index);

// The first GPU where there is one, else the host's twin.
struct DeviceChoice {
  std::unique_ptr<Device> device;
  std::string why_host;  // empty when a GPU was found
};
DeviceChoice ChooseDevice();

}  // namespace forebay
