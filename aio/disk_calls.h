// The system calls that move bytes. The seam below the engines where tests inject faults, so that
// the engines' own handling of short transfers and errors is what gets tested.
#pragma once

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
  // One pread or pwrite: bytes moved, or -errno. `path` is the name that the file was added with.
  virtual int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                           int64_t offset_bytes) = 0;
  // One fdatasync: 0 or -errno.
  virtual int Flush(int fd, std::string_view path) = 0;
};

// The real ones.
class SystemDiskCalls : public DiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override;
  int Flush(int fd, std::string_view path) override;
};

// A threads engine over `calls`, which must outlive it.
std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options, DiskCalls* calls);

}  // namespace forebay
