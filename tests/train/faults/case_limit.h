// A limit on the time of each case of a long suite: what hangs is named and ends the program, where
// ctest's own limit would end it without a word.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace forebay {

// Owned by one thread.
class CaseLimit {
 public:
  explicit CaseLimit(std::chrono::seconds limit) : limit_(limit), thread_([this] { Watch(); }) {}
  ~CaseLimit() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  CaseLimit(const CaseLimit&) = delete;
  CaseLimit& operator=(const CaseLimit&) = delete;

  // The time of `what` begins, and that of the case before is over.
  void Begin(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
    deadline_ = std::chrono::steady_clock::now() + limit_;
  }

 private:
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      // In naps, as the deadline moves with every case.
      changed_.wait_for(lock, std::chrono::milliseconds(500));
      if (ended_ || what_.empty() || std::chrono::steady_clock::now() < deadline_) continue;
      std::fprintf(stderr, "hangs for more than %lld s: %s\n",
                   static_cast<long long>(limit_.count()), what_.c_str());
      std::abort();
    }
  }

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  std::chrono::steady_clock::time_point deadline_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace forebay
