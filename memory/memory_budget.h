// Every large buffer belongs to a named purpose of one budget. The sum is planned before a run
// (train/plan/plan.h), checked here when buffers are made, and reported at the end.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "forebay/memory/page_tally.h"

namespace forebay {

// Thread-safe.
class MemoryBudget {
 public:
  // `limit_bytes` 0: no limit (counting only). `option`: which sets the limit, for messages.
  explicit MemoryBudget(int64_t limit_bytes, std::string_view option = "--ram")
      : limit_bytes_(limit_bytes), option_(option) {}

  // OutOfMemoryError naming the purpose, what it asked for, the limit and the largest purposes.
  absl::Status Charge(std::string_view purpose, int64_t bytes);
  void Release(std::string_view purpose, int64_t bytes);

  // What pages the buffers that are charged here got (HostBuffer says so); the sum over those that
  // live, with the first reason why some are worse than they should be.
  void AddPages(const PageTally& pages);
  void SubtractPages(const PageTally& pages);
  PageTally pages() const;

  int64_t used_bytes() const;
  int64_t peak_bytes() const;
  int64_t limit_bytes() const { return limit_bytes_; }
  std::map<std::string, int64_t> by_purpose() const;

 private:
  const int64_t limit_bytes_;
  const std::string option_;
  mutable std::mutex mutex_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::map<std::string, int64_t, std::less<>> by_purpose_;
  PageTally pages_;
};

}  // namespace forebay
