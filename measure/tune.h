// swap-bench tune: the settings with which an engine gets the most out of each disk with the least
// in flight, as the profile that the trainer reads (aio/io_profile.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/io_profile.h"
#include "forebay/base/json.h"
#include "forebay/measure/run_job.h"
#include "forebay/measure/sweep.h"

namespace forebay {

struct TuneOptions {
  SweepOptions sweep = {.budget_s = 40};  // of each folder; its loads are reads, and writes
  // How long reads and writes take turns: tried with mixed loads, shortest first.
  std::vector<int64_t> burst_bytes = {4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20};
  double burst_seconds = 1.5;  // of each
};

struct TuneReport {
  BenchReport report;  // all that was measured
  IoProfile profile;   // a device for each folder
};

// `job` gives the folders, the engine, and the size and contents of the files. Errors of
// BenchSession::Open and RunCells.
absl::StatusOr<TuneReport> RunTune(const Job& job, const TuneOptions& options,
                                   const BenchHooks& hooks);

// Of the points with this engine and block, the one with the fewest bytes in flight whose load
// `load` (an index into SweepPoint::gbps) reaches `share` of the best. Requires: there is one.
const SweepPoint& KneeOfLoad(std::span<const SweepPoint> points, EngineKind engine,
                             int64_t block_bytes, size_t load, double share = 0.97);

// The shortest burst whose bandwidth reaches `share` of the best. Requires: not empty, in order.
struct BurstPoint {
  int64_t burst_bytes = 0;
  double gbps = 0;
};
const BurstPoint& KneeOfBursts(std::span<const BurstPoint> points, double share = 0.97);

// The "aio" block of a DeepSpeed configuration with the same block and depth.
Json DeepSpeedAio(const DeviceProfile& device);

}  // namespace forebay
