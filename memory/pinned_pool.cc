#include "forebay/memory/pinned_pool.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
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
                                                               const PinnedPoolOptions& options) {
  FOREBAY_CHECK(options.buffer_bytes > 0 && options.num_takers > 0 && options.max_held > 0);
  FOREBAY_CHECK(options.num_buffers > options.num_takers * (options.max_held - 1));
  std::unique_ptr<PinnedPool> pool(new PinnedPool);
  pool->buffer_bytes_ =
      (options.buffer_bytes + kBasePageBytes - 1) / kBasePageBytes * kBasePageBytes;
  FOREBAY_ASSIGN_OR_RETURN(
      pool->memory_, HostBuffer::Create(budget, options.purpose,
                                        pool->buffer_bytes_ * options.num_buffers, options.memory));
  pool->num_buffers_ = options.num_buffers;
  pool->free_.reserve(static_cast<size_t>(options.num_buffers));
  // Lowest index on top: the last one given back is taken first, while it is in the cache.
  for (int index = options.num_buffers - 1; index >= 0; --index) pool->free_.push_back(index);
  return pool;
}

PinnedPool::~PinnedPool() {
  FOREBAY_CHECK(static_cast<int>(free_.size()) == num_buffers_);
}

PinnedLease PinnedPool::Lend() {
  const int index = free_.back();
  free_.pop_back();
  ++stats_.num_takes;
  stats_.max_lent = std::max(stats_.max_lent, num_buffers_ - static_cast<int>(free_.size()));
  PinnedLease lease;
  lease.pool_ = this;
  lease.index_ = index;
  lease.bytes_ = memory_.bytes().subspan(static_cast<size_t>(index * buffer_bytes_),
                                         static_cast<size_t>(buffer_bytes_));
  return lease;
}

PinnedLease PinnedPool::Take() {
  std::unique_lock lock(mutex_);
  const int64_t turn = next_turn_++;
  const auto is_my_turn = [&] { return serving_turn_ == turn && !free_.empty(); };
  if (!is_my_turn()) {
    const Stopwatch watch;
    turn_.wait(lock, is_my_turn);
    ++stats_.num_waits;
    stats_.longest_wait_s = std::max(stats_.longest_wait_s, watch.Seconds());
  }
  ++serving_turn_;
  PinnedLease lease = Lend();
  if (!free_.empty() && serving_turn_ < next_turn_) turn_.notify_all();
  return lease;
}

std::optional<PinnedLease> PinnedPool::TryTake() {
  const std::lock_guard lock(mutex_);
  if (free_.empty() || serving_turn_ < next_turn_) return std::nullopt;
  return Lend();
}

void PinnedPool::GiveBack(int index) {
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
  // All of them, for only the one whose turn it is may go on. Under the lock: a taker that gets
  // this buffer may end the pool as soon as the lock is free.
  if (serving_turn_ < next_turn_) turn_.notify_all();
}

PinnedPoolStats PinnedPool::stats() const {
  const std::lock_guard lock(mutex_);
  PinnedPoolStats stats = stats_;
  stats.num_waiting = static_cast<int>(next_turn_ - serving_turn_);
  return stats;
}

}  // namespace forebay
