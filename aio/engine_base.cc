#include "forebay/aio/engine_base.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

IoOp::~IoOp() {
  FOREBAY_CHECK(!pending());
}

bool IoQueue::empty() const {
  for (const Lane& lane : lanes_) {
    if (lane.first != nullptr) return false;
  }
  return true;
}

void IoQueue::Push(IoOp& op) {
  Lane& lane = lanes_[static_cast<size_t>(op.io_class)];
  op.next_ = nullptr;
  (lane.first == nullptr ? lane.first : lane.last->next_) = &op;
  lane.last = &op;
}

int IoQueue::ChooseLane() const {
  int chosen = -1;
  for (int i = kNumClasses - 1; i >= 0; --i) {
    if (lanes_[i].first == nullptr) continue;
    if (lanes_[i].passed_over >= kMaxPassedOver) return i;
    chosen = i;
  }
  return chosen;
}

IoOp& IoQueue::Pop() {
  const int chosen = ChooseLane();
  FOREBAY_CHECK(chosen >= 0);
  for (Lane& lane : lanes_) {
    if (lane.first != nullptr) ++lane.passed_over;
  }
  Lane& lane = lanes_[chosen];
  lane.passed_over = 0;
  IoOp& op = *lane.first;
  lane.first = op.next_;
  if (lane.first == nullptr) lane.last = nullptr;
  op.next_ = nullptr;
  return op;
}

EngineBase::File& EngineBase::FileAt(int file) {
  FOREBAY_CHECK(file >= 0 && file < static_cast<int>(files_.size()) && files_[file].fd.valid());
  return files_[file];
}

int EngineBase::AddFile(UniqueFd fd, std::string path) {
  FOREBAY_CHECK(fd.valid());
  const std::lock_guard lock(mutex_);
  files_.push_back({std::move(fd), std::move(path)});
  return static_cast<int>(files_.size()) - 1;
}

void EngineBase::RemoveFile(int file) {
  const std::lock_guard lock(mutex_);
  File& entry = FileAt(file);
  FOREBAY_CHECK(entry.num_pending == 0);
  entry.fd.Reset();
}

void EngineBase::Submit(IoOp& op) {
  const auto address = reinterpret_cast<uintptr_t>(op.buffer.data());
  FOREBAY_CHECK(!op.buffer.empty() && op.offset_bytes >= 0);
  FOREBAY_CHECK(
      (address | op.buffer.size() | static_cast<uint64_t>(op.offset_bytes)) % kIoAlignBytes == 0);
  FOREBAY_CHECK(op.state_.load(std::memory_order_relaxed) == IoOp::State::kIdle);
  {
    const std::lock_guard lock(mutex_);
    FOREBAY_CHECK(!stopping_);
    ++FileAt(op.file).num_pending;
    op.state_.store(IoOp::State::kPending, std::memory_order_relaxed);
    queue_.Push(op);
  }
  queued_.notify_one();
}

absl::Status EngineBase::Wait(IoOp& op) {
  if (op.pending()) {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [&op] { return !op.pending(); });
  }
  op.state_.store(IoOp::State::kIdle, std::memory_order_relaxed);
  return std::exchange(op.status_, absl::OkStatus());
}

EngineBase::Job EngineBase::TakeNext() {
  std::unique_lock lock(mutex_);
  queued_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
  if (queue_.empty()) return {};
  IoOp& op = queue_.Pop();
  const File& file = FileAt(op.file);
  return {&op, file.fd.get(), file.path};
}

void EngineBase::Complete(const Job& job, absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    IoOp& op = *job.op;
    --FileAt(op.file).num_pending;
    if (status.ok()) {
      const bool read = op.kind == IoKind::kRead;
      (read ? stats_.read_bytes : stats_.write_bytes) += static_cast<int64_t>(op.buffer.size());
      ++(read ? stats_.read_ops : stats_.write_ops);
    }
    op.status_ = std::move(status);
    // The last touch: the owner may end the op as soon as it sees this.
    op.state_.store(IoOp::State::kDone, std::memory_order_release);
  }
  completed_.notify_all();
}

void EngineBase::BeginStop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
}

absl::Status EngineBase::Flush(int file) {
  int fd = -1;
  File* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &FileAt(file);
    fd = entry->fd.get();
    if (entry->flush_failed) {
      // The kernel reports a lost write once and then says OK: asking again would turn the loss
      // into a success.
      return StorageError(
          fmt::format("aio: an earlier flush of '{}' failed, so what was written before it may be "
                      "lost. Nothing can be committed to "
                      "this file any more: end the run and resume from the last commit",
                      entry->path));
    }
    ++stats_.flushes;
  }
  const int result = FlushCall(fd, entry->path);
  if (result == 0) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  entry->flush_failed = true;
  return StorageError(
      fmt::format("aio: flushing '{}' to the device failed: {}. What was written since the last "
                  "flush may be lost; the committed state is "
                  "not touched. Look at 'dmesg' and the drive's health (smartctl -a), then resume "
                  "from the last commit",
                  entry->path, ErrnoText(-result)));
}

IoStats EngineBase::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace forebay
