// The engine that works everywhere: pread and pwrite on threads of its own.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine_base.h"
#include "forebay/aio/transfer.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

// Blocks every signal in the calling thread while it lives: threads made meanwhile inherit that, so
// Ctrl-C reaches the program's own threads, and a file size limit gives EFBIG instead of a deadly
// SIGXFSZ.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

class ThreadsEngine : public EngineBase {
 public:
  ThreadsEngine(int num_threads, std::unique_ptr<DiskCalls> owned_calls, DiskCalls* calls)
      : owned_calls_(std::move(owned_calls)), calls_(calls) {
    FOREBAY_CHECK(num_threads >= 1);
    const SignalsBlocked signals_blocked;
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] { Work(); });
      ::pthread_setname_np(threads_.back().native_handle(),
                           fmt::format("forebay-io-{}", i).c_str());
    }
  }

  // Queued ops are completed first: their owners may be waiting for them.
  ~ThreadsEngine() override {
    BeginStop();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string name() const override { return fmt::format("threads ({})", threads_.size()); }

 private:
  void Work() {
    for (Job job = TakeNext(); job.op != nullptr; job = TakeNext()) Complete(job, Move(job));
  }

  absl::Status Move(const Job& job) {
    Transfer transfer(job.op->kind, job.op->offset_bytes, job.op->buffer, job.path);
    while (true) {
      const int64_t result = calls_->Transfer(job.op->kind, job.fd, job.path, transfer.rest(),
                                              transfer.rest_offset_bytes());
      switch (transfer.Apply(result)) {
        case Transfer::Next::kDone:
          return absl::OkStatus();
        case Transfer::Next::kFailed:
          return transfer.status();
        case Transfer::Next::kCall:
          if (transfer.backoff_us() > 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(transfer.backoff_us()));
          }
      }
    }
  }

  int FlushCall(int fd, std::string_view path) override { return calls_->Flush(fd, path); }

  const std::unique_ptr<DiskCalls> owned_calls_;
  DiskCalls* const calls_;
  std::vector<std::thread> threads_;
};

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

std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options) {
  auto calls = std::make_unique<SystemDiskCalls>();
  DiskCalls* const borrowed = calls.get();
  return std::make_unique<ThreadsEngine>(options.num_threads, std::move(calls), borrowed);
}

std::unique_ptr<Engine> CreateThreadsEngine(const EngineOptions& options, DiskCalls* calls) {
  return std::make_unique<ThreadsEngine>(options.num_threads, nullptr, calls);
}

}  // namespace forebay
