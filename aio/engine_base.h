// What every engine shares: the files and their devices, the queues, the life of an op from Submit
// to Wait, the watch over devices that stall, and the counters. An engine derives from it and says
// how the bytes of one piece move.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/device_queue.h"
#include "forebay/aio/engine.h"
#include "forebay/aio/transfer.h"
#include "forebay/base/trace.h"

namespace forebay {

// Thread-safe. A derived class calls Shutdown at the beginning of its destructor.
class EngineBase : public Engine {
 public:
  int AddFile(UniqueFd fd, std::string path) override;
  void RemoveFile(int file) override;
  absl::Status RegisterBuffers(std::span<std::byte>) override { return absl::OkStatus(); }
  void UnregisterBuffers(std::span<std::byte> memory) override;
  std::string RegistrationNote() const override { return ""; }
  void Submit(IoOp& op) override;
  absl::Status Wait(IoOp& op) override;
  void WaitAny(std::span<IoOp* const> ops) override;
  void Cancel(IoOp& op) override;
  absl::Status Flush(int file) override;
  IoStats stats() const override;
  bool direct() const override { return true; }

 protected:
  using Lock = std::unique_lock<std::mutex>;

  struct Device {
    Device(dev_t device_id, int64_t burst_bytes);
    bool Idle() const { return num_in_flight == 0; }
    // Bytes in flight in the direction that is not `kind`.
    int64_t Opposing(IoKind kind) const { return kind == IoKind::kRead ? writing : reading; }
    int64_t& Direction(IoKind kind) { return kind == IoKind::kRead ? reading : writing; }

    const dev_t id;
    const std::string name;
    DeviceQueue queue;
    int num_in_flight = 0;  // pieces, without those that were given up
    int num_lost = 0;       // pieces that were given up and that the kernel still has
    int64_t reading = 0;    // bytes in flight
    int64_t writing = 0;
    int64_t counted_us = 0;   // up to when IoStats count the time in flight
    int64_t progress_us = 0;  // when a piece last ended, or one started on an idle device
    bool reported = false;    // since then
  };
  struct File {
    UniqueFd fd;
    std::string_view path;  // in *paths_
    Device* device = nullptr;
    int num_pending = 0;
    int registered = -1;    // the number that the kernel knows it by, for engines that have one
    bool is_cached = true;  // without O_DIRECT
    bool flush_failed = false;
    FileName name() const { return {path, device->name}; }
  };
  // One piece that was started. The engine that started it owns the slot until it calls Finish,
  // except for `op`, which the lock guards: nullptr once the op was given up.
  struct Slot {
    IoOp* op = nullptr;
    File* file = nullptr;
    IoKind kind = IoKind::kRead;
    Transfer transfer;
    int64_t bytes = 0;
    bool used = false;
    bool cancel_wanted = false;
  };

  // `num_slots`: pieces in flight at most. `block_bytes`: where the options leave it open.
  EngineBase(const EngineOptions& options, int num_slots, int64_t block_bytes);

  // Starts the next piece that the queues, caps and slots allow; nullptr: none.
  Slot* Start(Lock& lock);
  // Takes the result of a piece, after which the slot is free and the op may be complete.
  // CancelledError: it was not moved because the op is not wanted any more, which knows why.
  void Finish(Lock& lock, Slot& slot, absl::Status status);
  // What to do with a piece that could go on: nothing if its op is not wanted any more.
  static bool IsWanted(const Slot& slot) {
    return slot.op != nullptr && slot.op->cancelled_ == IoOp::Cancelled::kNo;
  }
  absl::Status FlushStatus(const Slot& slot, int result) const;
  void CountSubmission(Lock&, int64_t num_calls, int64_t submit_ns) {
    stats_.submitted_calls += num_calls;
    stats_.submit_ns += submit_ns;
  }
  // Wakes the threads that wait for what Finish completed since the last call. Without the lock.
  void NotifyCompleted(Lock& lock);

  // Waits until nothing is pending, then lets nothing more in. What a stalled device keeps is given
  // up; true when there is such, so that the kernel still knows buffers and files.
  bool Shutdown();
  bool stopping() const { return stopping_; }
  // What File::path points into: for whoever may still be in a call when the engine is gone.
  const std::shared_ptr<std::deque<std::string>>& paths() const { return paths_; }

  // ---- What an engine adds
  virtual int64_t NowUs() const;
  // There is something to start.
  virtual void OnSubmit(Lock& lock) = 0;
  // A slot's `cancel_wanted` was set.
  virtual void OnCancel(Lock&) {}
  // Sleeps until something completes or `deadline_us` is reached, whichever is first.
  virtual void Sleep(Lock& lock, int64_t deadline_us);
  virtual int RegisterFile(int) { return -1; }
  virtual void UnregisterFile(int) {}
  // The device that a file is on, of which each has a queue: what the kernel says, where no
  // simulated disk says otherwise.
  virtual dev_t DeviceIdOf(const struct stat& info, std::string_view path) const;

  const EngineOptions options_;
  const int64_t block_bytes_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;

 private:
  File& FileAt(int file);
  Device& DeviceOf(dev_t id);
  Device* NextDevice();
  bool MayStart(const Device& device) const;
  bool HasSlotLeft(const Device& device) const;
  // Counts the time that the device's reads and writes were in flight. Before either changes.
  void CountTime(Device& device, int64_t now_us);
  Slot* FreeSlot();
  void CheckFields(const IoOp& op) const;
  // OK, or why an op cannot even be queued.
  absl::Status Refusal(const IoOp& op, const File& file) const;
  void Complete(IoOp& op);
  void Trace(const IoOp& op, TraceRecorder& recorder);
  void CompleteIfOver(IoOp& op);
  void CancelOp(Lock& lock, IoOp& op, IoOp::Cancelled why);
  void GiveUp(IoOp& op);
  bool KeepOpenIfLost(File& file);
  // Looks after the device of a pending op at `now_us` of ClockUs; the time at which to look again,
  // and a line to report.
  int64_t WatchStall(Lock& lock, IoOp& op, int64_t now_us, std::string& line);
  std::string StallLine(const IoOp& op, int64_t quiet_us);
  void Report(Lock& lock, const std::string& line);
  absl::Status EndedEarly(const IoOp& op) const;
  std::string Describe(const IoOp& op) const;
  int64_t LastProgressUs(const IoOp& op) const;  // of ClockUs
  // NowUs without the time during which this process did not run: what devices are judged by.
  int64_t ClockUs() const { return NowUs() - paused_us_; }
  // Sleep until `deadline_us` of ClockUs at most.
  void SleepOnWatch(Lock& lock, int64_t deadline_us);
  bool WatchForShutdown(Lock& lock);

  std::condition_variable completed_;
  const std::shared_ptr<std::deque<std::string>> paths_ =
      std::make_shared<std::deque<std::string>>();
  std::deque<File> files_;       // references stay valid while files are added
  std::vector<int> free_files_;  // numbers of files that were removed
  std::deque<std::unique_ptr<Device>> devices_;
  size_t next_device_ = 0;  // whose turn it is
  int num_free_slots_ = 0;
  int num_pending_ = 0;    // ops
  int64_t awake_us_ = 0;   // when a watcher last woke up
  int64_t paused_us_ = 0;  // the sum of all pauses
  bool wake_waiters_ = false;
  bool stopping_ = false;
  IoStats stats_;
};

}  // namespace forebay
