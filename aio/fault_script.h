// Which calls to a disk go wrong, and how: shared by the disks that misbehave on purpose
// (faulty_disk.h under the threads engine, faulty_port.h under the others). For tests only.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/engine.h"

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
  int64_t again_every = 0;    // every so many-th transfer says EAGAIN; 0: never
  int64_t stall_call = -1;    // this call does not return until ReleaseStalled; -1: none
  bool stall_returns = true;  // when it is cancelled (where the engine can)
  int64_t flip_call = -1;     // one bit of what this call reads, or writes, is wrong; -1: none
  bool record = false;        // keep every completed write and flush for events()
  uint64_t seed = 1;          // of the cuts and delays
};

// What reached the device. A write may be lost or torn by a crash until a flush of its file
// follows.
struct DiskEvent {
  bool is_flush = false;
  std::string path;
  int64_t offset_bytes = 0;
  std::vector<std::byte> data;
};

// What is to happen to one call.
struct Fault {
  int error = 0;  // -errno: the disk is not asked
  bool stall = false;
  bool flip = false;
  int64_t delay_us = 0;
  int64_t asked_bytes = 0;  // of the disk: whole blocks
  int64_t moved_bytes = 0;  // at most reported, as the caller must not rely on what lies behind
  uint64_t random = 0;
};

// What a disk had to do at one time, at most.
struct DiskLoad {
  int64_t in_flight_bytes = 0;
  int64_t opposing_bytes = 0;  // of the direction that had less in flight, reads or writes
};

// Thread-safe.
class FaultScript {
 public:
  explicit FaultScript(const FaultPlan& plan) : plan_(plan) {}
  const FaultPlan& plan() const { return plan_; }

  // Numbers a call of `size_bytes` (0 for a flush) and says what happens to it.
  Fault Next(int64_t size_bytes);
  // A copy of `data` with the fault's bit flipped.
  static std::vector<std::byte> Flipped(const Fault& fault, std::span<const std::byte> data);

  void RecordWrite(std::string_view path, int64_t offset_bytes, std::span<const std::byte> data);
  void RecordFlush(std::string_view path);
  std::vector<DiskEvent> events() const;
  int64_t num_calls() const;
  // A transfer of a port begins (`bytes` above 0) or ends.
  void CountInFlight(IoKind kind, int64_t bytes);
  DiskLoad peak_load() const;

  void ReleaseStalled();
  bool released() const;
  void AwaitRelease();

 private:
  const FaultPlan plan_;
  mutable std::mutex mutex_;
  std::condition_variable released_changed_;
  int64_t num_calls_ = 0;
  bool released_ = false;
  int64_t reading_ = 0;
  int64_t writing_ = 0;
  DiskLoad peak_load_;
  std::vector<DiskEvent> events_;
};

}  // namespace forebay
