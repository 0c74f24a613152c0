// One pass of a benchmark: one load on one target, or on several at once, for a set time, with the
// kernel's counters read before and after.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/load/kernel_counters.h"
#include "forebay/measure/load/load_thread.h"

namespace forebay {

// Called by the thread that runs the pass, several times a second.
struct PassHooks {
  std::function<bool()> stop;  // true: end early with InterruptedError
  // `fraction` of the pass, and the bandwidth of the last moment in bytes per second. May be empty.
  std::function<void(double fraction, double bytes_per_s)> progress;
};

struct PassResult {
  double seconds = 0;  // that were measured
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  LatencyHistogram latency;
  double interval_s = 0;        // of the series
  std::vector<int64_t> series;  // bytes in each interval, whole ones only
  bool steady = false;          // ended because the bandwidth was

  // All operations, warm-up and drain included.
  int64_t all_read_bytes = 0;
  int64_t all_write_bytes = 0;
  int64_t all_ops = 0;
  double all_seconds = 0;
  double cpu_s = 0;
  std::optional<IoAccount> process_io;
  // Sum over the block devices of the files; nullopt when one has none.
  std::optional<DiskAccount> disk;
  // Bytes that io_uring's worker threads moved; -1: not known, or another engine.
  int64_t punted_bytes = -1;
  // Cost of handing operations to the kernel; 0 calls: not known.
  int64_t submit_ns = 0;
  int64_t submitted_calls = 0;
  std::optional<double> flush_s;  // of the fdatasync behind it
  PatternTally verified;
  std::string not_registered;  // why buffers are not, where they were to be

  int64_t bytes() const { return read_bytes + write_bytes; }
  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes()) / seconds : 0; }
  // With the time of the final fdatasync; as above where there was none.
  double flushed_bytes_per_s() const;
};

// Memory of thread `index` for a job whose loads go to `num_targets` at once, in bytes.
int64_t LoadMemoryBytes(const Job& job, int index, int num_targets);

// `memory`: one buffer for each thread of the job. The error of the first operation that failed;
// InterruptedError. Nothing is in flight when it returns.
absl::StatusOr<PassResult> RunPass(const LoadPlan& plan, std::span<const HostBuffer> memory,
                                   const PassHooks& hooks);

}  // namespace forebay
