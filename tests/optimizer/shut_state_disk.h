// A disk that holds back reads of the optimizer's state, so that updates lag behind as far as a
// test likes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include "forebay/aio/disk_calls.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {

// Reads of the state wait while it is shut.
class ShutStateDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kRead && path.ends_with(kStateName)) {
      std::unique_lock lock(mutex_);
      open_.wait(lock, [this] { return !is_shut_; });
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  void Shut(bool is_shut) {
    const std::lock_guard lock(mutex_);
    is_shut_ = is_shut;
    open_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable open_;
  bool is_shut_ = false;  // mutex_
};

}  // namespace forebay
