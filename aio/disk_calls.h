// The system calls that move bytes. The seam below the engines where tests inject faults, so that
// the engines' own handling of short transfers and errors is what gets tested.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "forebay/aio/engine.h"

namespace forebay {

// Thread-safe.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;
  // One pread or pwrite: bytes moved, or -errno. `kind` is no flush. `path` is the name that the
  // file was added with; it and `fd` may be gone when a call that the engine gave up comes back.
  virtual int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                           int64_t offset_bytes) = 0;
  // One fdatasync: 0 or -errno.
  virtual int Flush(int fd, std::string_view path) = 0;
  // The device that a file is on; `kernels`: what the kernel says.
  virtual dev_t DeviceIdOf(std::string_view /*path*/, dev_t kernels) const { return kernels; }
  // Lets go of the page cache behind a range that Transfer moved, writing it out first if need be:
  // 0, or -errno of a write that failed.
  virtual int DropCache(IoKind kind, int fd, int64_t offset_bytes, int64_t size_bytes);
};

// The real ones.
class SystemDiskCalls : public DiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override;
  int Flush(int fd, std::string_view path) override;
};

// A threads engine over `calls`.
std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options,
                                            std::shared_ptr<DiskCalls> calls);
// The same over borrowed calls, which must outlive it.
std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options, DiskCalls* calls);

}  // namespace forebay
