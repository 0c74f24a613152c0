// Looks for the best block size, bytes in flight and engine of each folder: one after another, the
// best so far kept, since a grid of all would take an hour. What comes out best is measured again,
// in turns with its runners-up (final_turns.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/target_runs.h"

namespace forebay {

struct SweepOptions {
  // For all passes in all folders; filling the files comes on top.
  double budget_s = 180;
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
  // Its blocks are longer than one request of the disk, so that the kernel splits them.
  bool split = false;
  // A point may be measured again: how often it was, and by load the values whose median is `gbps`.
  int num_turns = 0;
  std::vector<Spread> spread;
  // The geometric mean over the loads: a setting that starves one of them is no good.
  double score() const;
};

// The best point of one folder.
struct SweepBest {
  std::string device;
  SweepPoint best;  // BestPoint
  // The fewest bytes in flight that reach 97 % of the best: more only adds latency.
  SweepPoint knee;
  std::vector<SweepPoint> points;  // all that were measured
  std::string note;                // FewTurnsNote
};

struct SweepReport {
  BenchReport report;  // all that was measured
  std::vector<SweepBest> best;
};

// `job` gives the folders, loads, size and all that is not looked for; its repeats are per point.
// Errors of RunJob.
absl::StatusOr<SweepReport> RunSweep(const Job& job, const SweepOptions& options,
                                     const BenchHooks& hooks);

// UsageError where `job` (whose block and depth are the search's own) cannot be searched.
absl::Status CheckSearch(const Job& job);
// The least budget for one folder.
double LeastSweepS(const Job& job, const SweepOptions& options);
// `job` with the settings that the search begins with.
Job WithFirstPoint(Job job);

// The search alone, over one folder of an open session: every point once, in `budget_s`. Errors of
// RunCells.
absl::StatusOr<std::vector<SweepPoint>> SearchPoints(TargetRuns target, const Job& job,
                                                     const SweepOptions& options, double budget_s);

// One load at one point, to be measured again.
struct Contender {
  SweepPoint* point = nullptr;
  size_t load = 0;  // of the job
};
// Measures all contenders in turns (RunFinalTurns), and gives their points the medians: how often.
absl::StatusOr<int> MeasureAgain(TargetRuns target, const Job& job,
                                 const std::vector<Contender>& contenders, double budget_s);

// Of scores closer than this nobody can tell which is better.
inline constexpr double kNearlyBest = 0.97;
// The first point that was measured of those that reach `share` of the best score, and whose blocks
// are not split where there is such a one: a setting is only left for one that is clearly better. A
// split costs CPU and a second request in the disk's queue, and on old kernels some have to be
// submitted again, so that it has to bring something; where it does, it is taken. Requires: not
// empty.
const SweepPoint& BestPoint(const std::vector<SweepPoint>& points, double share = kNearlyBest);
// And of those with its engine and block that reach `share` of it, the one with the fewest bytes in
// flight.
const SweepPoint& KneePoint(const std::vector<SweepPoint>& points, double share = kNearlyBest);

// What is worth measuring again, in the order of `points`: the best and the knee, and what would be
// that if they were not there.
std::vector<SweepPoint> FinalistsOf(const std::vector<SweepPoint>& points);
bool SameSetting(const SweepPoint& a, const SweepPoint& b);
std::vector<SweepPoint> Without(std::vector<SweepPoint> points, const SweepPoint& left_out);

}  // namespace forebay
