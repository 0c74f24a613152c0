#include "forebay/memory/pinned_pool.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

PinnedLease::PinnedLease(PinnedLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      index_(std::exchange(other.index_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

PinnedLease& PinnedLease::operator=(PinnedLease&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  index_ = std::exchange(other.index_, -1);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void PinnedLease::Reset() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->GiveBack(std::exchange(index_, -1));
  bytes_ = {};
}

absl::StatusOr<std::unique_ptr<PinnedPool>> PinnedPool::Create(MemoryBudget* budget,
                                                               std::string_view purpose,
                                                               int64_t buffer_bytes,
                                                               int num_buffers) {
  constexpr int64_t kPageBytes = 4096;
  FOREBAY_CHECK(buffer_bytes > 0 && num_buffers > 0);
  std::unique_ptr<PinnedPool> pool(new PinnedPool);
  pool->buffer_bytes_ = (buffer_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  FOREBAY_ASSIGN_OR_RETURN(pool->memory_,
                           HostBuffer::Create(budget, purpose, pool->buffer_bytes_ * num_buffers));
  pool->num_buffers_ = num_buffers;
  // Lowest index on top, so that a pool used lightly touches few of its pages.
  for (int index = num_buffers - 1; index >= 0; --index) pool->free_.push_back(index);
  return pool;
}

PinnedPool::~PinnedPool() {
  FOREBAY_CHECK(static_cast<int>(free_.size()) == num_buffers_);
}

PinnedLease PinnedPool::MakeLease(int index) {
  PinnedLease lease;
  lease.pool_ = this;
  lease.index_ = index;
  lease.bytes_ = memory_.bytes().subspan(static_cast<size_t>(index * buffer_bytes_),
                                         static_cast<size_t>(buffer_bytes_));
  return lease;
}

PinnedLease PinnedPool::Take() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return !free_.empty(); });
  const int index = free_.back();
  free_.pop_back();
  return MakeLease(index);
}

std::optional<PinnedLease> PinnedPool::TryTake() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const int index = free_.back();
  free_.pop_back();
  return MakeLease(index);
}

void PinnedPool::GiveBack(int index) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(index);
  }
  given_back_.notify_one();
}

}  // namespace forebay
