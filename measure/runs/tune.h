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
#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/sweep.h"

namespace forebay {

struct TuneOptions {
  double budget_s = 50;  // for the passes in each folder
  SweepOptions sweep;    // its loads are reads, and writes; its own budget is not used
  // How long reads and writes take turns: tried with mixed loads, shortest first.
  std::vector<int64_t> burst_bytes = {4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20};
};

// What the rates of a device are the medians of, in GB/s. Single passes, and so no spread, where
// there was no time for a turn.
struct TunedRates {
  int num_turns = 0;
  Spread reads;
  Spread writes;
  Spread mixed;
};

struct TuneReport {
  BenchReport report;             // all that was measured
  IoProfile profile;              // a device for each folder
  std::vector<TunedRates> rates;  // of each
};

// `job` gives the folders, the engine, and the size and contents of the files. Errors of
// BenchSession::Open and RunCells; UsageError where the budget is too short for the disk.
absl::StatusOr<TuneReport> RunTune(const Job& job, const TuneOptions& options,
                                   const BenchHooks& hooks);

// Among the points with this engine and block: the one with the fewest bytes in flight whose load
// `load` (an index into SweepPoint::gbps) reaches `share` of the best. Requires: there is one.
const SweepPoint& KneeOfLoad(std::span<const SweepPoint> points, EngineKind engine,
                             int64_t block_bytes, size_t load, double share = 0.97);

// What is worth measuring again of them, in the order of `points`: that knee, what would be it if
// it were not there, and the best, which says whether it is one. Requires: there is one.
std::vector<SweepPoint> FinalistsOfLoad(const std::vector<SweepPoint>& points, EngineKind engine,
                                        int64_t block_bytes, size_t load);

// The different turns of at least one block that `burst_bytes` (in order) asks for.
std::vector<int64_t> BurstsOf(std::span<const int64_t> burst_bytes, int64_t block_bytes);

// The shortest burst whose bandwidth reaches `share` of the best. Requires: not empty, in order.
struct BurstPoint {
  int64_t burst_bytes = 0;
  double gbps = 0;
  Spread spread = {};  // of one that was measured again: what `gbps` is the median of
};
const BurstPoint& KneeOfBursts(std::span<const BurstPoint> points, double share = 0.97);
// That knee, what would be it if it were not there, and the best, in order.
std::vector<BurstPoint> FinalistsOfBursts(std::span<const BurstPoint> points);

// UsageError when nothing was completed in the passes that a rate of `device` comes from.
absl::Status CheckTuned(const DeviceProfile& device);

// The "aio" block of a DeepSpeed configuration with the same block and depth.
Json DeepSpeedAio(const DeviceProfile& device);

}  // namespace forebay
