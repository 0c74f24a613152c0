// A disk on which no write ends while the gate is shut.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <string_view>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine.h"

namespace forebay {

class WriteGate : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kWrite) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_open_; });
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  void Open(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;  // mutex_
};

// Bytes of which the engine was asked to read `expected` in all, or what it is after 20 s.
inline int64_t AwaitSubmittedReads(const Engine& engine, int64_t expected) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (engine.stats().submitted_read_bytes < expected && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return engine.stats().submitted_read_bytes;
}

}  // namespace forebay
