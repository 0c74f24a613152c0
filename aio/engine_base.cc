#include "forebay/aio/engine_base.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
IoOp::~IoOp() {
  FOREBAY_CHECK(!pending());
}

EngineBase::Device::Device(dev_t device_id, int64_t burst_bytes)
    : id(device_id), name(DeviceName(device_id)), queue(burst_bytes) {}

EngineBase::EngineBase(const EngineOptions& options, int num_slots, int64_t block_bytes)
    : options_(options),
      block_bytes_(options.block_bytes > 0 ? options.block_bytes : block_bytes),
      slots_(static_cast<size_t>(num_slots)),
      num_free_slots_(num_slots) {
  FOREBAY_CHECK(block_bytes_ % kIoAlignBytes == 0 && options.burst_bytes > 0);
}

// ---- Files

EngineBase::File& EngineBase::FileAt(int file) {
  FOREBAY_CHECK(file >= 0 && file < static_cast<int>(files_.size()) && files_[file].fd.valid());
  return files_[file];
}

EngineBase::Device& EngineBase::DeviceOf(dev_t id) {
  const auto found = std::ranges::find_if(devices_, [&](const auto& d) { return d->id == id; });
  if (found != devices_.end()) return **found;
  devices_.push_back(std::make_unique<Device>(id, options_.burst_bytes));
  return *devices_.back();
}

dev_t EngineBase::DeviceIdOf(const struct stat& info, std::string_view) const {
  return info.st_dev;
}

int EngineBase::AddFile(UniqueFd fd, std::string path) {
  FOREBAY_CHECK(fd.valid());
  struct stat info = {};
  // A network file system may not answer; its files then share one queue.
  if (::fstat(fd.get(), &info) != 0) info = {};
  const bool is_cached = (::fcntl(fd.get(), F_GETFL) & O_DIRECT) == 0 && S_ISREG(info.st_mode);
  // Without reading ahead: beside other transfers it brings back pages that they have just dropped,
  // until the cache holds the whole file.
  if (is_cached) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  // The cache may still hold what another process failed to write out. It would be read as if it
  // were on the disk.
  if (is_cached) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  const int registered = RegisterFile(fd.get());
  const Lock lock(mutex_);
  File file;
  file.is_cached = is_cached;
  file.registered = registered;
  file.fd = std::move(fd);
  auto number = static_cast<int>(files_.size());
  if (free_files_.empty()) {
    files_.emplace_back();
    paths_->emplace_back();
  } else {
    number = free_files_.back();
    free_files_.pop_back();
  }
  std::string& kept_path = (*paths_)[static_cast<size_t>(number)];
  kept_path = std::move(path);
  file.path = kept_path;
  file.device = &DeviceOf(DeviceIdOf(info, file.path));
  files_[static_cast<size_t>(number)] = std::move(file);
  return number;
}

void EngineBase::RemoveFile(int file) {
  int registered = -1;
  UniqueFd closed_later;
  {
    const Lock lock(mutex_);
    File& entry = FileAt(file);
    FOREBAY_CHECK(entry.num_pending == 0);
    registered = entry.registered;
    if (!KeepOpenIfLost(entry)) free_files_.push_back(file);
    closed_later = std::move(entry.fd);
  }
  if (registered >= 0) UnregisterFile(registered);
}

// ---- Submitting

void EngineBase::CheckFields(const IoOp& op) const {
  FOREBAY_CHECK(op.state_.load(std::memory_order_relaxed) == IoOp::State::kIdle);
  if (op.kind == IoKind::kFlush) {
    FOREBAY_CHECK(op.buffer.empty());
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(op.buffer.data());
  FOREBAY_CHECK(!op.buffer.empty() && op.offset_bytes >= 0);
  FOREBAY_CHECK((address | op.buffer.size() | static_cast<uint64_t>(op.offset_bytes)) %
                    static_cast<uint64_t>(op.align_bytes) ==
                0);
}

absl::Status EngineBase::Refusal(const IoOp& op, const File& file) const {
  if (op.kind == IoKind::kFlush && file.flush_failed) {
    // The kernel reports a lost write once and then says OK: asking again would turn the loss
    // into a success.
    return StorageError(fmt::format(
        "aio: an earlier flush of '{}' failed, so what was written before it may be "
        "lost. Nothing can be committed to this file any more: end the run, and resume it",
        file.path));
  }
  for (const Slot& slot : slots_) {
    if (!slot.used || slot.op != nullptr) continue;
    if (slot.file->device == file.device || Overlap(op.buffer, slot.transfer.buffer())) {
      return StorageError(fmt::format(
          "aio: {} was not started: {} was given up after {} stalled, and the kernel still has it. "
          "Look at 'dmesg' and the device, then resume",
          Describe(op), slot.transfer.Description(), slot.file->device->name));
    }
  }
  return absl::OkStatus();
}

// No op that somebody still waits for may use the memory, in whichever engine.
void EngineBase::UnregisterBuffers(std::span<std::byte> memory) {
  const Lock lock(mutex_);
  for (const Slot& slot : slots_) {
    // What was given up is the kernel's own affair: it keeps the pages as long as it needs them.
    FOREBAY_CHECK(slot.op == nullptr || !Overlap(memory, slot.transfer.buffer()));
  }
  for (const auto& device : devices_) FOREBAY_CHECK(!device->queue.HasUserOf(memory));
}

void EngineBase::Submit(IoOp& op) {
  CheckFields(op);
  Lock lock(mutex_);
  FOREBAY_CHECK(!stopping_);
  File& file = FileAt(op.file);
  Device& device = *file.device;
  op.cancelled_ = IoOp::Cancelled::kNo;
  op.waited_for_ = false;
  op.num_in_flight_ = 0;
  op.taken_bytes_ = 0;
  op.progress_us_ = ClockUs();
  op.submitted_ns_ = TraceRecorder::Active() == nullptr ? 0 : TraceNowNs();
  op.started_ns_ = 0;
  ++file.num_pending;
  ++num_pending_;
  if (op.kind == IoKind::kRead) {
    op.total_bytes_ = stats_.submitted_read_bytes += static_cast<int64_t>(op.buffer.size());
  }
  op.state_.store(IoOp::State::kPending, std::memory_order_relaxed);
  if (device.num_lost > 0 || op.kind == IoKind::kFlush) {
    op.status_ = Refusal(op, file);
    if (!op.status_.ok()) return Complete(op);
  }
  device.queue.Push(op);
  OnSubmit(lock);
}

absl::Status EngineBase::Flush(int file) {
  IoOp op;
  op.kind = IoKind::kFlush;
  op.file = file;
  Submit(op);
  return Wait(op);
}

// ---- Starting and finishing pieces

// Slots are for all devices: else the slowest would end up with every slot, and the others would
// have nothing to do. What their equal shares leave over is for whoever comes first.
bool EngineBase::HasSlotLeft(const Device& device) const {
  const auto num_slots = static_cast<int>(slots_.size());
  const auto num_devices = static_cast<int>(devices_.size());
  const int share = std::max(1, num_slots / num_devices);
  if (device.num_in_flight < share) return true;
  int num_spare = num_slots - share * num_devices;
  for (const auto& each : devices_) num_spare -= std::max(0, each->num_in_flight - share);
  return num_spare > 0;
}

bool EngineBase::MayStart(const Device& device) const {
  if (device.queue.empty()) return false;
  if (device.Idle()) return true;
  if (!HasSlotLeft(device)) return false;
  const IoKind kind = device.queue.Peek().kind;
  if (kind == IoKind::kFlush) return true;
  const bool own_cap = kind == IoKind::kWrite && options_.max_writing_bytes > 0;
  const int64_t cap = own_cap ? options_.max_writing_bytes : options_.max_in_flight_bytes;
  if (device.reading + device.writing + block_bytes_ > cap) return false;
  // The other direction is left to run dry, but for one block, which keeps the device busy
  // while the first of this direction are on their way.
  return device.Opposing(kind) <= block_bytes_;
}

void EngineBase::CountTime(Device& device, int64_t now_us) {
  const int64_t elapsed_us = now_us - std::exchange(device.counted_us, now_us);
  const int64_t share_us = device.reading > 0 && device.writing > 0 ? elapsed_us / 2 : elapsed_us;
  if (device.reading > 0) stats_.read_us += share_us;
  if (device.writing > 0) stats_.write_us += share_us;
}

EngineBase::Device* EngineBase::NextDevice() {
  for (size_t i = 0; i < devices_.size(); ++i) {
    Device& device = *devices_[(next_device_ + i) % devices_.size()];
    if (!MayStart(device)) continue;
    next_device_ = (next_device_ + i + 1) % devices_.size();
    return &device;
  }
  return nullptr;
}

EngineBase::Slot* EngineBase::FreeSlot() {
  if (num_free_slots_ == 0) return nullptr;
  for (Slot& slot : slots_) {
    if (!slot.used) return &slot;
  }
  return nullptr;
}

EngineBase::Slot* EngineBase::Start(Lock&) {
  Slot* const slot = FreeSlot();
  Device* const device = slot == nullptr ? nullptr : NextDevice();
  if (device == nullptr) return nullptr;
  const DeviceQueue::Piece piece = device->queue.Take(block_bytes_);
  IoOp& op = *piece.op;
  File& file = FileAt(op.file);
  const int64_t now_us = ClockUs();
  slot->op = &op;
  slot->file = &file;
  slot->kind = op.kind;
  slot->bytes = piece.bytes;
  slot->used = true;
  slot->cancel_wanted = false;
  slot->transfer = Transfer(
      op.kind, op.offset_bytes + piece.offset_bytes,
      op.buffer.subspan(static_cast<size_t>(piece.offset_bytes), static_cast<size_t>(piece.bytes)),
      file.name());
  --num_free_slots_;
  if (device->Idle()) device->progress_us = now_us;
  CountTime(*device, now_us);
  ++device->num_in_flight;
  device->Direction(op.kind) += piece.bytes;
  ++op.num_in_flight_;
  op.progress_us_ = now_us;
  if (op.submitted_ns_ != 0 && op.started_ns_ == 0) op.started_ns_ = TraceNowNs();
  return slot;
}

absl::Status EngineBase::FlushStatus(const Slot& slot, int result) const {
  if (result == 0) return absl::OkStatus();
  return StorageError(fmt::format(
      "aio: flushing '{}' to the device {} failed: {}. What was written since the last "
      "flush may be lost. Look at 'dmesg' and the drive's health (smartctl -a), then resume",
      slot.file->path, slot.file->device->name, ErrnoText(-result)));
}

void EngineBase::Finish(Lock&, Slot& slot, absl::Status status) {
  Device& device = *slot.file->device;
  IoOp* const op = std::exchange(slot.op, nullptr);
  if (slot.kind == IoKind::kFlush && !status.ok()) slot.file->flush_failed = true;
  slot.used = false;
  ++num_free_slots_;
  device.progress_us = ClockUs();
  device.reported = false;
  if (op == nullptr) {
    --device.num_lost;
    return;
  }
  CountTime(device, device.progress_us);
  --device.num_in_flight;
  device.Direction(slot.kind) -= slot.bytes;
  --op->num_in_flight_;
  op->progress_us_ = device.progress_us;
  if (!status.ok() && op->status_.ok()) op->status_ = std::move(status);
  CompleteIfOver(*op);
}

// An op whose first piece failed gets no further ones.
void EngineBase::CompleteIfOver(IoOp& op) {
  const bool ended_early = !op.status_.ok() || op.cancelled_ != IoOp::Cancelled::kNo;
  if (op.queued_ && ended_early) FileAt(op.file).device->queue.Remove(op);
  if (op.num_in_flight_ > 0 || op.queued_) return;
  const bool all_moved = op.left_bytes() == 0 && op.status_.ok();
  if (op.cancelled_ != IoOp::Cancelled::kNo && !(all_moved && op.kind != IoKind::kFlush)) {
    op.status_ = EndedEarly(op);
  }
  Complete(op);
}

void EngineBase::Complete(IoOp& op) {
  --FileAt(op.file).num_pending;
  --num_pending_;
  if (op.status_.ok()) {
    const auto bytes = static_cast<int64_t>(op.buffer.size());
    stats_.flushes += op.kind == IoKind::kFlush ? 1 : 0;
    stats_.read_ops += op.kind == IoKind::kRead ? 1 : 0;
    stats_.write_ops += op.kind == IoKind::kWrite ? 1 : 0;
    (op.kind == IoKind::kRead ? stats_.read_bytes : stats_.write_bytes) += bytes;
    TraceRecorder* const recorder = TraceRecorder::Active();
    if (recorder != nullptr) Trace(op, *recorder);
  }
  // Sleepers that wait for others stay asleep.
  wake_waiters_ = wake_waiters_ || op.waited_for_ || num_pending_ == 0;
  // The last touch: the owner may end the op as soon as it sees this.
  op.state_.store(IoOp::State::kDone, std::memory_order_release);
}

// Requires: it is counted.
void EngineBase::Trace(const IoOp& op, TraceRecorder& recorder) {
  TraceEvent event;
  event.row = op.kind == IoKind::kFlush  ? TraceRow::kFlush
              : op.kind == IoKind::kRead ? TraceRow::kRead
                                         : TraceRow::kWrite;
  event.end_ns = TraceNowNs();
  event.begin_ns = op.submitted_ns_ != 0 ? op.submitted_ns_ : recorder.begin_ns();
  event.started_ns = std::max(op.started_ns_, event.begin_ns);
  event.label = recorder.LabelOf(FileAt(op.file).path);
  event.offset_bytes = op.offset_bytes;
  event.bytes = static_cast<int64_t>(op.buffer.size());
  event.total_bytes = op.kind == IoKind::kRead ? op.total_bytes_ : stats_.write_bytes;
  recorder.Add(event);
}

void EngineBase::NotifyCompleted(Lock& lock) {
  if (!std::exchange(wake_waiters_, false)) return;
  lock.unlock();
  completed_.notify_all();
  lock.lock();
}

// ---- Waiting

int64_t EngineBase::NowUs() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

void EngineBase::Sleep(Lock& lock, int64_t deadline_us) {
  completed_.wait_until(
      lock, std::chrono::steady_clock::time_point(std::chrono::microseconds(deadline_us)));
}

absl::Status EngineBase::Wait(IoOp& op) {
  if (op.pending()) {
    Lock lock(mutex_);
    op.waited_for_ = true;
    while (op.pending()) {
      std::string line;
      const int64_t deadline_us = WatchStall(lock, op, ClockUs(), line);
      Report(lock, line);
      NotifyCompleted(lock);  // others whose ops were given up with it
      if (op.pending()) SleepOnWatch(lock, deadline_us);
    }
  }
  op.state_.store(IoOp::State::kIdle, std::memory_order_relaxed);
  return std::exchange(op.status_, absl::OkStatus());
}

void EngineBase::WaitAny(std::span<IoOp* const> ops) {
  const auto any_complete = [ops] {
    return ops.empty() || !std::ranges::all_of(ops, [](const IoOp* op) { return op->pending(); });
  };
  if (any_complete()) return;
  Lock lock(mutex_);
  for (IoOp* op : ops) op->waited_for_ = true;
  while (!any_complete()) {
    int64_t deadline_us = INT64_MAX;
    const int64_t now_us = ClockUs();  // once: a look at every op's costs as much as a transfer
    for (IoOp* op : ops) {
      if (!op->pending()) break;  // since a report opened the lock
      std::string line;
      deadline_us = std::min(deadline_us, WatchStall(lock, *op, now_us, line));
      Report(lock, line);
    }
    NotifyCompleted(lock);  // others whose ops were given up with these
    if (!any_complete()) SleepOnWatch(lock, deadline_us);
  }
}

IoStats EngineBase::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

}  // namespace forebay
