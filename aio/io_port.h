// What an asynchronous engine asks of the kernel, and the engine over it. The seam below the
// engines where tests put a simulated disk, or faults between engine and kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"

namespace forebay {

// Owned by one thread, except for Wake and NowUs.
class IoPort {
 public:
  struct Call {
    IoKind kind = IoKind::kRead;
    IoClass io_class = IoClass::kDemand;
    int fd = -1;
    int registered_file = -1;  // what RegisterFile gave for `fd`
    std::string_view path;
    std::span<std::byte> buffer;
    int64_t offset_bytes = 0;
    uint32_t tag = 0;  // below depth(); no two calls in flight share one
  };
  struct Result {
    uint32_t tag = 0;
    int64_t result = 0;  // bytes moved, or -errno
  };
  static constexpr int64_t kNoTimeout = -1;

  virtual ~IoPort() = default;

  // Calls in flight at most.
  virtual int depth() const = 0;
  // Makes a call ready; no system call yet.
  virtual void Queue(const Call& call) = 0;
  // Asks the kernel for a call back. Its result comes all the same: -ECANCELED, or what it was.
  virtual void Cancel(uint32_t tag) = 0;
  // Hands over what is queued without waiting, so that the time it takes can be told. Optional: Run
  // hands over what is left.
  virtual void Submit() {}
  // Hands over what is queued, waits for a result, a Wake or the timeout, and takes as many results
  // as are there and fit; their number.
  virtual int Run(std::span<Result> results, int64_t timeout_us) = 0;
  // Ends a Run that waits, or the next one. Thread-safe.
  virtual void Wake() = 0;

  // Both may do nothing (-1; 0): calls then go by descriptor and address.
  virtual int RegisterFile(int) { return -1; }
  virtual void UnregisterFile(int) {}
  // Whether the two below do anything. Thread-safe.
  virtual bool registers_buffers() const { return false; }
  // 0, or the errno with which the kernel refuses; none of `memory` is registered then.
  virtual int RegisterBuffers(std::span<std::byte>) { return 0; }
  virtual void UnregisterBuffers(std::span<std::byte>) {}

  // The clock of stalls and retries; a simulated disk has its own. Thread-safe.
  virtual int64_t NowUs() const;
  // From now on the port must not wait for calls in flight when it is destroyed: they are lost.
  virtual void AbandonCalls() {}
  // "io_uring": for logs.
  virtual std::string name() const = 0;
};

// The port is made by the thread that will own it, which some kernels insist on.
using PortFactory = std::function<absl::StatusOr<std::unique_ptr<IoPort>>()>;
// An engine over the port that `factory` makes, or the factory's error.
absl::StatusOr<std::unique_ptr<Engine>> CreateRingEngine(const EngineOptions& options,
                                                         RingDrive drive,
                                                         const PortFactory& factory);

// The ports of the real engines.
absl::StatusOr<std::unique_ptr<IoPort>> OpenIoUringPort();
absl::StatusOr<std::unique_ptr<IoPort>> OpenLibaioPort();

}  // namespace forebay
