// A disk under the threads engine that misbehaves on purpose, and one that remembers what was asked
// of it. For tests only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/aio/faults/fault_script.h"

namespace forebay {

// Thread-safe. A stalled call cannot be cancelled, as no thread in a system call can.
class FaultyDisk : public DiskCalls {
 public:
  explicit FaultyDisk(const FaultPlan& plan) : script_(plan) {}

  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override;
  int Flush(int fd, std::string_view path) override;

  FaultScript& script() { return script_; }
  int64_t num_calls() const { return script_.num_calls(); }
  std::vector<DiskEvent> events() const { return script_.events(); }

 private:
  FaultScript script_;
  SystemDiskCalls system_;
};

}  // namespace forebay
