#include "forebay/measure/load/load_clock.h"

#include <algorithm>
#include <cmath>

namespace forebay {

BandwidthSeries::BandwidthSeries(double seconds, double interval_s)
    : interval_ns_(static_cast<int64_t>(interval_s * 1e9)),
      bytes_(static_cast<size_t>(std::ceil(seconds / interval_s)) + 1) {}

std::vector<int64_t> BandwidthSeries::Before(int64_t at_ns) const {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, at_ns) / interval_ns_);
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < std::min(count, bytes_.size()); ++i) {
    bytes.push_back(bytes_[i].load(std::memory_order_relaxed));
  }
  return bytes;
}

LoadClock::LoadClock(int num_threads, double warmup_s, double seconds, double interval_s)
    : num_threads_(num_threads),
      warmup_ns_(static_cast<int64_t>(warmup_s * 1e9)),
      length_ns_(static_cast<int64_t>(seconds * 1e9)),
      series_(seconds, interval_s) {}

bool LoadClock::AwaitStart() {
  std::unique_lock lock(mutex_);
  ++num_ready_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return started_; });
  return go_;
}

void LoadClock::Drained() {
  const std::lock_guard lock(mutex_);
  ++num_drained_;
  changed_.notify_all();
}

void LoadClock::AwaitLeave() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return leave_; });
}

void LoadClock::AwaitReady() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return num_ready_ == num_threads_; });
}

void LoadClock::Start(bool go) {
  const std::lock_guard lock(mutex_);
  start_ns_ = NowNs();
  measure_ns_ = start_ns_ + warmup_ns_;
  end_ns_ = measure_ns_ + length_ns_;
  started_ = true;
  go_ = go;
  changed_.notify_all();
}

bool LoadClock::AllDrained(int wait_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                           [this] { return num_drained_ == num_threads_; });
}

void LoadClock::End() {
  end_ns_ = std::min(end_ns_.load(), NowNs());
}

void LoadClock::Leave() {
  const std::lock_guard lock(mutex_);
  leave_ = true;
  changed_.notify_all();
}

}  // namespace forebay
