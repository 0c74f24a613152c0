// What was measured of one cell: one load on one target at one setting, over all its repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/measure/load/job.h"
#include "forebay/measure/load/latency_histogram.h"
#include "forebay/measure/load/pass.h"
#include "forebay/measure/load/statistics.h"

namespace forebay {

// What makes two cells comparable.
struct CellKey {
  std::string device;  // the folder as it was named; several, striped: joined with "+"
  LoadKind load;
  int64_t block_bytes = 0;
  int64_t inflight_bytes = 0;  // on each device
  std::string engine;          // "io_uring"
  // Length of the turns that reads and writes take; 0: the engine's own.
  int64_t burst_bytes = 0;
  bool operator==(const CellKey&) const = default;
};

// "mixed50".
std::string LoadName(const LoadKind& load);

// The same load through fio, in turn with ours.
struct FioFigures {
  Spread gbps;        // over the repeats
  std::string pages;  // "reserved huge pages" or "4 KiB pages": where its buffers were
};

struct CellResult {
  CellKey key;
  int threads = 1;
  bool fixed = false;           // buffers were registered
  int num_files = 1;            // of several the load is striped over all
  int num_files_in_memory = 0;  // on a file system that keeps them in RAM
  bool in_memory() const { return num_files_in_memory == num_files; }
  std::string pages;  // "thp": what most of the memory is in
  std::string pattern;
  // Why engine, pages, NUMA node or registration are not as asked for.
  std::vector<std::string> reasons;

  int64_t bytes = 0;          // measured, of all repeats
  double seconds = 0;         // measured, of all repeats
  int64_t written_bytes = 0;  // in all, warm-up and drain included
  Spread gbps;                // over the repeats; 1 GB is 10^9 bytes
  Spread read_gbps;           // its parts
  Spread write_gbps;
  std::optional<Spread> flushed_gbps;  // with the time of the final fdatasync
  LatencyHistogram latency;            // from submission to completion
  std::optional<double> submit_us;     // the thread's time to hand one operation to the kernel
  double cpu_ms_per_gb = 0;
  double cpu_cores = 0;            // busy, of the whole process
  std::optional<double> punted;    // share of the bytes that io_uring's workers moved
  std::optional<double> splits;    // requests of the device per operation, less one
  std::optional<double> flush_ms;  // median
  // What the kernel counted, over what was asked of it: of this process, and at the disks.
  std::optional<double> process_ratio;
  std::optional<double> disk_ratio;
  std::string held_back_by;  // what was asked for, where that and not the device sets the pace
  std::optional<int> steady_repeats;  // that reached the steady state, where it was asked for
  // Bytes by time, of the repeat that is the median: (end of the interval in seconds, bytes).
  std::vector<std::pair<double, int64_t>> series;
  std::optional<double> first10_gbps;  // of long loads with writes
  std::optional<double> last10_gbps;
  std::optional<PatternTally> verified;
  std::optional<FioFigures> fio;  // where it was asked for and can do the same
  // Our median over fio's; nullopt without one, and where fio's is 0.
  std::optional<double> fio_ratio() const;
  std::vector<std::string> verdict;
};

// The passes of one cell. Fills everything but key, pages, pattern, threads, reasons and verdict.
// Requires: at least one pass.
CellResult Summarize(std::span<const PassResult> passes);

// All of the kernel's counters that are known agree with ours.
bool CountersMatch(const CellResult& cell);

// In words, what bounded the load and what is odd about it. `cell` is complete but for this.
std::vector<std::string> VerdictOf(const CellResult& cell, int num_cores);

}  // namespace forebay
