// A wait for another thread that leaves the caller time for something else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/functional/function_ref.h"

namespace forebay {

// As `condition.wait(lock, is_done)`; ten times a second `meanwhile` is called, without the lock.
template <typename Done>
void WaitMeanwhile(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                   const Done& is_done, absl::FunctionRef<void()> meanwhile) {
  while (!condition.wait_for(lock, std::chrono::milliseconds(100), is_done)) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

}  // namespace forebay
