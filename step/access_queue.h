// The announced accesses of the window in order: a ring that stops allocating once it has seen its
// longest announcement. Not for use outside layer_window.cc.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "forebay/base/check.h"

namespace forebay {

struct Access {
  int layer = -1;
  int buffer = -1;        // -1: none assigned yet
  bool was_read = false;  // its weights were read for it, rather than found in a buffer
};

// Positions count from the first access ever announced, so they stay valid while accesses are taken
// from the front. [front, ready_end) are ready to be acquired; [ready_end, end) wait to be staged.
// Thread-compatible.
class AccessQueue {
 public:
  int64_t front() const { return front_; }
  int64_t ready_end() const { return ready_end_; }
  int64_t end() const { return end_; }
  bool empty() const { return front_ == end_; }

  // Requires: front() <= position < end().
  Access& At(int64_t position) {
    FOREBAY_CHECK(position >= front_ && position < end_);
    return ring_[static_cast<size_t>(position) % ring_.size()];
  }

  void Push(int layer) {
    if (end_ - front_ == static_cast<int64_t>(ring_.size())) Grow();
    ring_[static_cast<size_t>(end_) % ring_.size()] = Access{layer};
    ++end_;
  }
  // Requires: ready_end() < end().
  void MarkNextReady() {
    FOREBAY_CHECK(ready_end_ < end_);
    ++ready_end_;
  }
  // Takes the front access. Requires: it is ready.
  Access PopReady() {
    FOREBAY_CHECK(front_ < ready_end_);
    const Access access = At(front_);
    ++front_;
    return access;
  }
  // Nothing is ready any more. The caller has taken the buffers back.
  void Rewind() { ready_end_ = front_; }
  // Forgets all accesses. Requires: none is ready.
  void Clear() {
    FOREBAY_CHECK(ready_end_ == front_);
    end_ = front_;
  }

 private:
  void Grow() {
    std::vector<Access> larger(ring_.empty() ? 64 : 2 * ring_.size());
    for (int64_t position = front_; position < end_; ++position) {
      larger[static_cast<size_t>(position) % larger.size()] = At(position);
    }
    ring_ = std::move(larger);
  }

  std::vector<Access> ring_;
  int64_t front_ = 0;
  int64_t ready_end_ = 0;
  int64_t end_ = 0;
};

}  // namespace forebay
