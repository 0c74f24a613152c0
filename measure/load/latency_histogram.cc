#include "forebay/measure/load/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "forebay/base/check.h"

namespace forebay {

int LatencyHistogram::IndexOf(int64_t duration_ns) {
  const auto value =
      static_cast<uint64_t>(std::clamp<int64_t>(duration_ns, 0, (int64_t{1} << kMaxBits) - 1));
  if (value < 2 * kSub) return static_cast<int>(value);
  const int top_bit = std::bit_width(value) - 1;
  const int shift = top_bit - kSubBits;
  return static_cast<int>(shift * kSub + static_cast<int64_t>(value >> shift));
}

int64_t LatencyHistogram::UpperEndNs(int index) {
  if (index < 2 * kSub) return index;
  const int shift = static_cast<int>(index / kSub) - 1;
  const int64_t first = (index % kSub + kSub) << shift;
  return first + (int64_t{1} << shift) - 1;
}

void LatencyHistogram::Record(int64_t duration_ns) {
  ++counts_[static_cast<size_t>(IndexOf(duration_ns))];
  ++count_;
  max_ns_ = std::max(max_ns_, duration_ns);
}

void LatencyHistogram::Add(const LatencyHistogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

int64_t LatencyHistogram::PercentileNs(double percent) const {
  FOREBAY_CHECK(percent > 0 && percent <= 100);
  // 99.9 % of 1000 are 999, though the product is a little more.
  constexpr double kRounding = 1e-6;
  const auto rank =
      static_cast<int64_t>(std::ceil(percent / 100 * static_cast<double>(count_) - kRounding));
  int64_t seen = 0;
  for (int i = 0; i < kNumBuckets; ++i) {
    seen += counts_[static_cast<size_t>(i)];
    if (seen >= rank && seen > 0) return std::min(UpperEndNs(i), max_ns_);
  }
  return max_ns_;
}

std::vector<LatencyHistogram::Bucket> LatencyHistogram::buckets() const {
  std::vector<Bucket> filled;
  for (int i = 0; i < kNumBuckets; ++i) {
    const int64_t count = counts_[static_cast<size_t>(i)];
    if (count > 0) filled.push_back({UpperEndNs(i), count});
  }
  return filled;
}

}  // namespace forebay
