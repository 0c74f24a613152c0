// How often an operation took how long, in buckets whose width grows with the time (as
// HdrHistogram's do), so that the 99.9th percentile of a million operations is known to 3 % without
// keeping them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace forebay {

// Thread-compatible. Records in constant time without allocation; 10 KiB.
class LatencyHistogram {
 public:
  // Operations that took at most `le_ns` and longer than the bucket before.
  struct Bucket {
    int64_t le_ns = 0;
    int64_t count = 0;
    bool operator==(const Bucket&) const = default;
  };

  void Record(int64_t duration_ns);
  void Add(const LatencyHistogram& other);
  void Clear() { *this = LatencyHistogram(); }

  int64_t count() const { return count_; }
  int64_t max_ns() const { return max_ns_; }  // exact
  // The least time that `percent` of the operations did not exceed: the upper end of its bucket, at
  // most 3.1 % above. 0 when nothing was recorded. Requires: 0 < percent <= 100.
  int64_t PercentileNs(double percent) const;
  // Those that are not empty, in order.
  std::vector<Bucket> buckets() const;

 private:
  // Exact below 2 * kSub nanoseconds; above, each power of two is cut into kSub buckets. What is
  // longer than 2^42 ns (73 minutes) counts as that.
  static constexpr int kSubBits = 5;
  static constexpr int64_t kSub = 1 << kSubBits;
  static constexpr int kMaxBits = 42;
  static constexpr int kNumBuckets = 2 * kSub + (kMaxBits - kSubBits - 1) * kSub;
  static int IndexOf(int64_t duration_ns);
  static int64_t UpperEndNs(int index);

  std::array<int64_t, kNumBuckets> counts_ = {};
  int64_t count_ = 0;
  int64_t max_ns_ = 0;
};

}  // namespace forebay
