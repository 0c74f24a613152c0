// Looks for the best block size, bytes in flight and engine of each folder: one after another, the
// best so far kept, since a grid of all would take an hour.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/run_job.h"

namespace forebay {

struct SweepOptions {
  double budget_s = 180;  // for all passes; filling the files comes on top
  std::vector<int64_t> block_bytes = {256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20};
  std::vector<int64_t> inflight_bytes = {1 << 20,  2 << 20,  4 << 20,  8 << 20,
                                         16 << 20, 32 << 20, 64 << 20, 128 << 20};
};

// One setting, with the bandwidth of every load of the job, in the job's order.
struct SweepPoint {
  int64_t block_bytes = 0;
  int64_t inflight_bytes = 0;
  EngineKind engine = EngineKind::kAuto;
  std::vector<double> gbps;
  // The geometric mean over the loads: a setting that starves one of them is no good.
  double score() const;
};

// Of one folder.
struct SweepBest {
  std::string device;
  SweepPoint best;
  // The fewest bytes in flight that reach 97 % of the best: more only adds latency.
  SweepPoint knee;
  std::vector<SweepPoint> points;  // all that were measured
};

struct SweepReport {
  BenchReport report;  // all that was measured
  std::vector<SweepBest> best;
};

// `job` gives the folders, loads, size and all that is not looked for; its repeats are per point.
// Errors of RunJob.
absl::StatusOr<SweepReport> RunSweep(const Job& job, const SweepOptions& options,
                                     const BenchHooks& hooks);

// The search over one folder of an open session; what was measured is added to `runs`. Errors of
// RunCells.
absl::StatusOr<SweepBest> SweepTarget(BenchSession& session, const Job& job, int target,
                                      const SweepOptions& options, const BenchHooks& hooks,
                                      std::vector<CellResult>& runs);

// The point with the best score, and the one with the fewest bytes in flight among those with its
// engine and block that reach `share` of it. Requires: not empty.
const SweepPoint& BestPoint(const std::vector<SweepPoint>& points);
const SweepPoint& KneePoint(const std::vector<SweepPoint>& points, double share = 0.97);

}  // namespace forebay
