// A fixed number of equal buffers, taken as move-only leases. A taker waits, in turn, when all are
// out; nothing is allocated after creation.
//
// Whoever sizes a pool says who takes from it and how much each holds, and the pool checks the one
// sum that keeps waiting from becoming a deadlock (docs/architecture.md, "Back-pressure").
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {

class PinnedPool;

// The right to one buffer of a pool; the destructor gives it back. Move-only.
class PinnedLease {
 public:
  PinnedLease() = default;
  ~PinnedLease() { Reset(); }
  PinnedLease(PinnedLease&& other) noexcept;
  PinnedLease& operator=(PinnedLease&& other) noexcept;
  void Reset();
  bool valid() const { return pool_ != nullptr; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class PinnedPool;
  PinnedPool* pool_ = nullptr;
  int index_ = -1;
  std::span<std::byte> bytes_;
};

struct PinnedPoolOptions {
  std::string purpose;       // of the budget
  int64_t buffer_bytes = 0;  // rounded up to 4 KiB
  int num_buffers = 0;
  // At most so many takers (threads, or tasks that give back on their own) use the pool, each with
  // at most `max_held` leases at a time, and none waits for another taker while it holds any.
  int num_takers = 1;
  int max_held = 1;
  HostBufferOptions memory;
};

struct PinnedPoolStats {
  int64_t num_takes = 0;
  int64_t num_waits = 0;  // takes that had to wait
  double longest_wait_s = 0;
  int max_lent = 0;     // most leases out at a time
  int num_waiting = 0;  // now
};

// Thread-safe. Must outlive its leases (the destructor checks it).
class PinnedPool {
 public:
  // The bound, checked here: num_buffers > num_takers * (max_held - 1). A taker that waits holds at
  // most max_held - 1 leases. Were all of them waiting, they would hold num_takers * (max_held - 1)
  // at most, so a buffer would be free and none would wait. Hence some taker is not waiting; by the
  // promise above it gives its leases back without anyone's help. As waiters are served in turn, a
  // wait lasts num_takers - 1 such gives back at most.
  static absl::StatusOr<std::unique_ptr<PinnedPool>> Create(MemoryBudget* budget,
                                                            const PinnedPoolOptions& options);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  PinnedLease Take();                    // waits behind those that wait already
  std::optional<PinnedLease> TryTake();  // does not wait, and does not overtake

  int num_buffers() const { return num_buffers_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  PinnedPoolStats stats() const;
  const PageTally& pages() const { return memory_.pages(); }
  // For registration with the I/O engine: every buffer of at most 1 GiB lies within one piece.
  std::vector<std::span<std::byte>> IoPieces() const { return memory_.IoPieces(buffer_bytes_); }

 private:
  friend class PinnedLease;
  PinnedPool() = default;
  void GiveBack(int index);
  PinnedLease Lend();  // requires: mutex_ held, a free buffer

  HostBuffer memory_;
  int64_t buffer_bytes_ = 0;
  int num_buffers_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<int> free_;     // mutex; never grows beyond its capacity
  int64_t next_turn_ = 0;     // mutex: of the next that comes to wait
  int64_t serving_turn_ = 0;  // mutex: who may take next; all before it have theirs
  PinnedPoolStats stats_;     // mutex
};

}  // namespace forebay
