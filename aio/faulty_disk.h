// A disk that misbehaves on purpose, and one that remembers what was asked of it. For tests only.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"

namespace forebay {

struct FaultPlan {
  // Calls (transfers and flushes together) are numbered from 0 in the order in which they start.
  int64_t fail_call = -1;       // this call fails with `error_number`; -1: none
  bool fail_all_after = false;  // and so does every later one: a dead device
  int error_number = EIO;
  int64_t max_transfer_bytes =
      0;  // longer transfers are cut short, at any multiple of 512 bytes; 0: never
  int64_t max_delay_us =
      0;  // waits up to this before each transfer, so that ops complete out of order
  int64_t again_every = 0;  // every so many-th transfer says EAGAIN; 0: never
  bool record = false;      // keep every completed write and flush for events()
  uint64_t seed = 1;        // of the cuts and delays
};

// What reached the device. A write may be lost or torn by a crash until a flush of its file
// follows.
struct DiskEvent {
  bool is_flush = false;
  std::string path;
  int64_t offset_bytes = 0;
  std::vector<std::byte> data;
};

// Thread-safe.
class FaultyDisk : public DiskCalls {
 public:
  explicit FaultyDisk(const FaultPlan& plan) : plan_(plan) {}

  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override;
  int Flush(int fd, std::string_view path) override;

  int64_t num_calls() const;
  std::vector<DiskEvent> events() const;

 private:
  // Numbers a call; 0, or the -errno that it has to fail with.
  int BeginCall(int64_t* call);

  const FaultPlan plan_;
  SystemDiskCalls system_;
  mutable std::mutex mutex_;
  int64_t num_calls_ = 0;
  std::vector<DiskEvent> events_;
};

}  // namespace forebay
