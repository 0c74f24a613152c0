// A fixed number of equal buffers, taken as move-only leases. A taker waits when all are out;
// whoever sizes a pool proves there that this cannot deadlock (docs/architecture.md,
// "Back-pressure").
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
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

// Thread-safe. Must outlive its leases (the destructor checks it).
class PinnedPool {
 public:
  // `buffer_bytes` is rounded up to 4 KiB.
  static absl::StatusOr<std::unique_ptr<PinnedPool>> Create(MemoryBudget* budget,
                                                            std::string_view purpose,
                                                            int64_t buffer_bytes, int num_buffers);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  PinnedLease Take();                    // waits
  std::optional<PinnedLease> TryTake();  // does not

  int num_buffers() const { return num_buffers_; }
  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  friend class PinnedLease;
  PinnedPool() = default;
  void GiveBack(int index);
  PinnedLease MakeLease(int index);

  HostBuffer memory_;
  int64_t buffer_bytes_ = 0;
  int num_buffers_ = 0;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<int> free_;
};

}  // namespace forebay
