// What the threads of one pass share: when to begin, what counts, when to end, and what was moved
// meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace forebay {

inline int64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Bytes by time. Thread-safe; adding takes no lock.
class BandwidthSeries {
 public:
  BandwidthSeries(double seconds, double interval_s);
  // `at_ns`: since the beginning. What lies behind the end is left out.
  void Add(int64_t at_ns, int64_t bytes) {
    const auto interval = static_cast<size_t>(at_ns / interval_ns_);
    if (interval < bytes_.size()) bytes_[interval].fetch_add(bytes, std::memory_order_relaxed);
  }
  double interval_s() const { return static_cast<double>(interval_ns_) * 1e-9; }
  // The counts of the first intervals, those that end before `at_ns`.
  std::vector<int64_t> Before(int64_t at_ns) const;

 private:
  const int64_t interval_ns_;
  std::vector<std::atomic<int64_t>> bytes_;
};

// The course of a pass: every thread gets ready, all begin at once, warm up, measure, drain.
// Thread-safe.
class LoadClock {
 public:
  LoadClock(int num_threads, double warmup_s, double seconds, double interval_s);

  // ---- Load threads
  // Says that this thread is ready, waits for the others; false when the pass does not take place.
  bool AwaitStart();
  bool ended(int64_t now_ns) const { return now_ns >= end_ns_.load(std::memory_order_relaxed); }
  // Whether what completes now counts. Below 0: still warming up.
  int64_t MeasuredNs(int64_t now_ns) const { return now_ns - measure_ns_; }
  void Drained();     // nothing of this thread is in flight any more
  void AwaitLeave();  // until the coordinator looked at all counters

  BandwidthSeries& series() { return series_; }
  // Whether it counts or not: what the pass looks like while it lasts.
  void AddMoved(int64_t bytes) { moved_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t moved_bytes() const { return moved_bytes_.load(std::memory_order_relaxed); }

  // ---- The coordinator
  void AwaitReady();    // all threads
  void Start(bool go);  // not `go`: a thread failed to get ready
  // True when every thread has drained; waits for that at most `wait_ms`.
  bool AllDrained(int wait_ms);
  void End();  // now, not when the time is over
  void Leave();

  int64_t start_ns() const { return start_ns_; }
  int64_t measure_ns() const { return measure_ns_; }
  int64_t end_ns() const { return end_ns_.load(); }

 private:
  const int num_threads_;
  const int64_t warmup_ns_;
  const int64_t length_ns_;
  BandwidthSeries series_;
  std::atomic<int64_t> moved_bytes_{0};
  // Written before the threads are let go.
  int64_t start_ns_ = 0;
  int64_t measure_ns_ = 0;
  std::atomic<int64_t> end_ns_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_ready_ = 0;
  int num_drained_ = 0;
  bool started_ = false;
  bool go_ = false;
  bool leave_ = false;
};

}  // namespace forebay
