// The engine that works everywhere: pread and pwrite on threads of its own.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine_base.h"
#include "forebay/aio/io_thread.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

// A call costs the threads engine a thread while it lasts, so calls are long: the kernel cuts them
// into requests by itself.
constexpr int64_t kThreadBlockBytes = int64_t{16} << 20;

// What a call needs that may outlast the engine.
using CallOwners = std::pair<std::shared_ptr<DiskCalls>, std::shared_ptr<std::deque<std::string>>>;

// A call with all that it needs: while it lasts the engine may end, and then only what CallOwners
// keep is there.
struct BlockingCall {
  DiskCalls* calls;
  IoKind kind;
  int fd;
  bool is_cached;
  std::string_view path;
  std::span<std::byte> buffer;
  int64_t offset_bytes;

  int64_t Make() const {
    if (kind == IoKind::kFlush) return calls->Flush(fd, path);
    const int64_t moved = calls->Transfer(kind, fd, path, buffer, offset_bytes);
    if (moved <= 0 || !is_cached) return moved;
    const int dropped = calls->DropCache(kind, fd, offset_bytes, moved);
    return dropped < 0 ? dropped : moved;
  }
};

class ThreadsEngine : public EngineBase {
 public:
  ThreadsEngine(const EngineOptions& options, std::shared_ptr<DiskCalls> calls)
      : EngineBase(CapsFor(options), options.num_threads, kThreadBlockBytes),
        calls_(std::move(calls)) {
    FOREBAY_CHECK(options.num_threads >= 1);
    for (int i = 0; i < options.num_threads; ++i) {
      absl::StatusOr<IoThread> thread = IoThread::Start(
          fmt::format("forebay-io-{}", i), [this](IoThread::Calls& guard) { Work(guard); },
          std::make_shared<CallOwners>(calls_, paths()));
      // Fewer do as well, and slower; none is what the first operation says.
      if (!thread.ok()) {
        no_thread_ = thread.status();
        break;
      }
      threads_.push_back(*std::move(thread));
    }
  }

  ~ThreadsEngine() override {
    const bool some_lost = Shutdown();
    queued_.notify_all();
    for (IoThread& thread : threads_) thread.End(some_lost);
  }

  std::string name() const override {
    return fmt::format("{} ({})", direct() ? "threads" : "buffered threads", threads_.size());
  }
  bool direct() const override { return options_.engine != EngineKind::kBuffered; }

 private:
  // The number of threads is the cap.
  static EngineOptions CapsFor(EngineOptions options) {
    const int64_t block = options.block_bytes > 0 ? options.block_bytes : kThreadBlockBytes;
    options.max_in_flight_bytes =
        std::max(options.max_in_flight_bytes, block * options.num_threads);
    return options;
  }

  void OnSubmit(Lock& lock) override {
    if (!threads_.empty()) {
      queued_.notify_one();
      return;
    }
    while (Slot* const slot = Start(lock)) Finish(lock, *slot, no_thread_);
    NotifyCompleted(lock);
  }
  dev_t DeviceIdOf(const struct stat& info, std::string_view path) const override {
    return calls_->DeviceIdOf(path, info.st_dev);
  }

  void Work(IoThread::Calls& guard) {
    Lock lock(mutex_);
    while (true) {
      Slot* const slot = Start(lock);
      if (slot != nullptr) {
        if (!Move(lock, guard, *slot)) return;
      } else if (stopping()) {
        return;
      } else {
        queued_.wait(lock);
      }
    }
  }

  // Moves one piece. False when the engine is gone.
  bool Move(Lock& lock, IoThread::Calls& guard, Slot& slot) {
    absl::Status status;
    while (true) {
      const BlockingCall call = CallOf(slot);
      lock.unlock();
      guard.Begin();
      const int64_t result = call.Make();
      if (!guard.End()) return false;
      const Transfer::Next next =
          slot.kind == IoKind::kFlush ? Transfer::Next::kDone : slot.transfer.Apply(result);
      if (next == Transfer::Next::kCall && slot.transfer.backoff_us() > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(slot.transfer.backoff_us()));
      }
      if (next == Transfer::Next::kFailed) status = slot.transfer.status();
      lock.lock();
      if (slot.kind == IoKind::kFlush) status = FlushStatus(slot, static_cast<int>(result));
      if (next != Transfer::Next::kCall) break;
      if (!IsWanted(slot)) {
        status = absl::CancelledError();
        break;
      }
    }
    Finish(lock, slot, std::move(status));
    // This thread takes one of the pieces that may start now; if there are more, so may others.
    queued_.notify_all();
    NotifyCompleted(lock);
    return true;
  }

  BlockingCall CallOf(const Slot& slot) const {
    return {calls_.get(),
            slot.kind,
            slot.file->fd.get(),
            slot.file->is_cached,
            slot.file->path,
            slot.transfer.rest(),
            slot.transfer.rest_offset_bytes()};
  }

  const std::shared_ptr<DiskCalls> calls_;
  std::condition_variable queued_;
  std::vector<IoThread> threads_;
  absl::Status no_thread_;  // why there are not as many as there should be
};

// Says that the kernel has no such call here, rather than that a write failed.
bool IsNotSupported(int error_number) {
  return error_number == EINVAL || error_number == ESPIPE || error_number == ENOSYS ||
         error_number == EOPNOTSUPP || error_number == EPERM;
}

}  // namespace

int64_t SystemDiskCalls::Transfer(IoKind kind, int fd, std::string_view,
                                  std::span<std::byte> buffer, int64_t offset_bytes) {
  const ssize_t result = kind == IoKind::kRead
                             ? ::pread(fd, buffer.data(), buffer.size(), offset_bytes)
                             : ::pwrite(fd, buffer.data(), buffer.size(), offset_bytes);
  return result < 0 ? -errno : result;
}

int SystemDiskCalls::Flush(int fd, std::string_view) {
  return ::fdatasync(fd) == 0 ? 0 : -errno;
}

// Without this, a run through the page cache would fill the memory beside its budget with pages
// that are not read again before they are evicted.
int DiskCalls::DropCache(IoKind kind, int fd, int64_t offset_bytes, int64_t size_bytes) {
  if (kind == IoKind::kWrite) {
    constexpr int kWriteOut =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    // Its error is the only report of a failed write-out: a later fdatasync would say OK.
    if (::sync_file_range(fd, offset_bytes, size_bytes, kWriteOut) != 0 && !IsNotSupported(errno)) {
      return -errno;
    }
  }
  ::posix_fadvise(fd, offset_bytes, size_bytes, POSIX_FADV_DONTNEED);
  return 0;
}

std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options) {
  return CreateThreadsEngine(options, std::make_shared<SystemDiskCalls>());
}

std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options,
                                            std::shared_ptr<DiskCalls> calls) {
  return std::make_unique<ThreadsEngine>(options, std::move(calls));
}

std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options, DiskCalls* calls) {
  return CreateThreadsEngine(options, std::shared_ptr<DiskCalls>(calls, [](DiskCalls*) {}));
}

}  // namespace forebay
