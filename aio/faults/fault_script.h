// Which calls to a disk go wrong, and how: shared by the disks that misbehave on purpose
// (faulty_disk.h under the threads engine, faulty_port.h under the others). For tests only.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/engine.h"

namespace forebay {

// A call by what it does: the same one in every run of the same work, whichever thread comes first.
struct CallName {
  IoKind kind = IoKind::kRead;
  std::string file;  // without its folder; "1/weights.fbs" in the second of FaultPlan::folders
  int64_t offset_bytes = 0;
  int64_t nth = 0;  // of the calls with this kind, file and offset, from 0

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 means the comparison it generates.
  auto operator<=>(const CallName&) const = default;
};

// What the disk makes of a call that fails.
enum class FaultEffect : uint8_t {
  kError,    // an error, and nothing moved
  kShort,    // half of the bytes moved
  kNothing,  // no error, and nothing moved
};

struct FaultPlan {
  // Calls (transfers and flushes together) are numbered from 0 in the order in which they start.
  int64_t fail_call = -1;              // this call fails; -1: none
  std::optional<CallName> fail_named;  // so does this one
  // And so does every later one (a dead device); with fail_named, every later one of its kind, file
  // and offset.
  bool fail_all_after = false;
  FaultEffect effect = FaultEffect::kError;  // a flush knows errors alone
  int error_number = EIO;
  int64_t max_transfer_bytes =
      0;  // longer transfers are cut short, at any multiple of 512 bytes; 0: never
  int64_t max_delay_us =
      0;  // waits up to this before each transfer, so that ops complete out of order
  int64_t again_every = 0;    // every so many-th transfer says EAGAIN; 0: never
  int64_t stall_call = -1;    // this call does not return until ReleaseStalled; -1: none
  bool stall_returns = true;  // when it is cancelled (where the engine can)
  int64_t flip_call = -1;     // one bit of what this call reads, or writes, is wrong; -1: none
  // Where files of one name lie in several folders: calls are named by the folder's number too.
  std::vector<std::string> folders;
  bool record = false;  // keep every completed write and flush for events()
  uint64_t seed = 1;    // of the cuts and delays
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
  std::optional<int> made_up;  // the result, 0 or -errno: the disk is not asked
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

  // Numbers and names a call of `size_bytes` (0 for a flush) to the file at `path`, and says what
  // happens to it.
  Fault Next(IoKind kind, std::string_view path, int64_t offset_bytes, int64_t size_bytes);
  // A copy of `data` with the fault's bit flipped.
  static std::vector<std::byte> Flipped(const Fault& fault, std::span<const std::byte> data);

  void RecordWrite(std::string_view path, int64_t offset_bytes, std::span<const std::byte> data);
  void RecordFlush(std::string_view path);
  std::vector<DiskEvent> events() const;
  int64_t num_calls() const;
  // All calls so far, in the order in which they started.
  std::vector<CallName> calls() const;
  // A transfer of a port begins (`bytes` above 0) or ends.
  void CountInFlight(IoKind kind, int64_t bytes);
  DiskLoad peak_load() const;

  void ReleaseStalled();
  bool released() const;
  void AwaitRelease();

 private:
  // Whether the newest call is one that the plan lets fail.
  bool Fails() const;
  std::string FileOf(std::string_view path) const;

  const FaultPlan plan_;
  mutable std::mutex mutex_;
  std::condition_variable released_changed_;
  std::vector<CallName> calls_;
  std::map<CallName, int64_t> num_same_;  // by the name of the first of them
  bool released_ = false;
  int64_t reading_ = 0;
  int64_t writing_ = 0;
  DiskLoad peak_load_;
  std::vector<DiskEvent> events_;
};

}  // namespace forebay
