// The part of EngineBase that keeps a device that stops answering from stopping everything: ops are
// reported, then cancelled, then given up; and the end of an engine, which has to wait for buffers
// that the kernel still uses. None of it runs while devices work.
#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine_base.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// How long the kernel gets to hand back what was cancelled, at most.
constexpr double kCancelGraceS = 5;

// A sleeper that wakes so much too late was not late because of a device: the process was stopped
// (Ctrl-Z), or its machine was. It sleeps in short naps, so that little of a pause counts.
constexpr int64_t kPauseUs = 2'000'000;
constexpr int64_t kNapUs = 5'000'000;

int64_t Us(double seconds) {
  return static_cast<int64_t>(seconds * 1e6);
}

}  // namespace

std::string EngineBase::Describe(const IoOp& op) const {
  const File& file = files_[static_cast<size_t>(op.file)];
  if (op.kind == IoKind::kFlush) {
    return fmt::format("the flush of '{}' on {}", file.path, file.device->name);
  }
  return Transfer(op.kind, op.offset_bytes, op.buffer, file.name()).Description();
}

// Since when nothing happened to the op, nor to others that it queues behind.
int64_t EngineBase::LastProgressUs(const IoOp& op) const {
  const Device& device = *files_[static_cast<size_t>(op.file)].device;
  int64_t last_us = op.progress_us_;
  if (op.num_in_flight_ == 0) last_us = std::max(last_us, device.progress_us);
  return last_us;
}

void EngineBase::SleepOnWatch(Lock& lock, int64_t deadline_us) {
  const int64_t wake_us = std::min(deadline_us + paused_us_, NowUs() + kNapUs);
  Sleep(lock, wake_us);
  const int64_t now_us = NowUs();
  const int64_t late_us = now_us - std::max(wake_us, std::exchange(awake_us_, now_us));
  if (late_us > kPauseUs) paused_us_ += late_us;
}

// The line for `options_.report`; empty when this stall was reported before.
std::string EngineBase::StallLine(const IoOp& op, int64_t quiet_us) {
  Device& device = *FileAt(op.file).device;
  if (std::exchange(device.reported, true)) return "";
  return fmt::format(
      "aio: {} has completed nothing for {}: {} waits for it. It gets {} in all. Look at 'dmesg' "
      "and the drive; a network or USB disk may have lost its connection",
      device.name, FormatDuration(static_cast<double>(quiet_us) / 1e6), Describe(op),
      FormatDuration(options_.stall_limit_s));
}

void EngineBase::Report(Lock& lock, const std::string& line) {
  if (line.empty() || !options_.report) return;
  lock.unlock();
  options_.report(line);
  lock.lock();
}

int64_t EngineBase::WatchStall(Lock& lock, IoOp& op, int64_t now_us, std::string& line) {
  const int64_t report_us = Us(options_.stall_report_s);
  const int64_t limit_us = Us(options_.stall_limit_s);
  const int64_t give_up_us = limit_us + std::min(limit_us, Us(kCancelGraceS));
  const int64_t last_us = LastProgressUs(op);
  const int64_t quiet_us = now_us - last_us;
  if (quiet_us < std::min(report_us, limit_us)) return last_us + std::min(report_us, limit_us);
  if (quiet_us >= report_us) line = StallLine(op, quiet_us);
  if (quiet_us < limit_us) return last_us + limit_us;
  if (op.cancelled_ != IoOp::Cancelled::kBecauseStalled) {
    CancelOp(lock, op, IoOp::Cancelled::kBecauseStalled);
  } else if (quiet_us >= give_up_us) {
    GiveUp(op);
  }
  return last_us + give_up_us;
}

absl::Status EngineBase::EndedEarly(const IoOp& op) const {
  if (op.cancelled_ == IoOp::Cancelled::kOnRequest) {
    return InterruptedError(fmt::format("aio: {} was cancelled", Describe(op)));
  }
  return StorageError(fmt::format(
      "aio: {} was given up: the device {} completed nothing for {}{}. Look at 'dmesg' and the "
      "drive's health (smartctl -a), reconnect or replace it, and resume",
      Describe(op), files_[static_cast<size_t>(op.file)].device->name,
      FormatDuration(options_.stall_limit_s),
      op.num_in_flight_ > 0 ? ", and the kernel did not hand the transfer back" : ""));
}

void EngineBase::Cancel(IoOp& op) {
  Lock lock(mutex_);
  if (op.pending() && op.cancelled_ == IoOp::Cancelled::kNo) {
    CancelOp(lock, op, IoOp::Cancelled::kOnRequest);
  }
  NotifyCompleted(lock);
}

void EngineBase::CancelOp(Lock& lock, IoOp& op, IoOp::Cancelled why) {
  op.cancelled_ = why;
  bool any_in_flight = false;
  for (Slot& slot : slots_) {
    if (slot.op != &op) continue;
    slot.cancel_wanted = true;
    any_in_flight = true;
  }
  CompleteIfOver(op);
  if (any_in_flight) OnCancel(lock);
}

// The kernel keeps the pieces, whose slots stay used until it gives them back; the op ends.
void EngineBase::GiveUp(IoOp& op) {
  Device& device = *FileAt(op.file).device;
  CountTime(device, ClockUs());
  op.status_ = EndedEarly(op);
  for (Slot& slot : slots_) {
    if (slot.op != &op) continue;
    slot.op = nullptr;
    --device.num_in_flight;
    device.Direction(slot.kind) -= slot.bytes;
    ++device.num_lost;
    if (slot.kind == IoKind::kFlush) slot.file->flush_failed = true;
  }
  op.num_in_flight_ = 0;
  if (op.queued_) device.queue.Remove(op);
  Complete(op);
  // What waits behind it would wait in vain.
  while (!device.queue.empty()) {
    IoOp& next = device.queue.Any();
    next.status_ = Refusal(next, FileAt(next.file));
    CompleteIfOver(next);
  }
}

// A thread or the kernel may be in the middle of a call on it. Its number must not become another
// file's, so it stays open until the process ends. Whether it is so.
bool EngineBase::KeepOpenIfLost(File& file) {
  const auto uses_it = [&file](const Slot& slot) { return slot.used && slot.file == &file; };
  const bool is_lost = std::ranges::any_of(slots_, uses_it);
  if (is_lost) file.fd.Release();
  return is_lost;
}

// Watches over one op of every device; false when nothing is pending.
bool EngineBase::WatchForShutdown(Lock& lock) {
  if (num_pending_ == 0) return false;
  int64_t deadline_us = ClockUs() + Us(options_.stall_report_s);
  for (const auto& device : devices_) {
    IoOp* op = device->queue.empty() ? nullptr : &device->queue.Any();
    for (const Slot& slot : slots_) {
      if (op == nullptr && slot.op != nullptr && slot.file->device == device.get()) op = slot.op;
    }
    if (op == nullptr) continue;
    std::string line;
    deadline_us = std::min(deadline_us, WatchStall(lock, *op, ClockUs(), line));
    Report(lock, line);
  }
  if (num_pending_ > 0) SleepOnWatch(lock, deadline_us);
  return num_pending_ > 0;
}

bool EngineBase::Shutdown() {
  Lock lock(mutex_);
  while (WatchForShutdown(lock)) {
  }
  stopping_ = true;
  for (File& file : files_) KeepOpenIfLost(file);
  return std::ranges::any_of(devices_, [](const auto& device) { return device->num_lost > 0; });
}

}  // namespace forebay
