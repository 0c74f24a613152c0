#include "forebay/measure/runs/target_runs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr double kWarmupShare = 0.25;
constexpr double kLongestWarmupS = 0.5;

size_t NumPasses(const Job& job) {
  return job.loads.size() * static_cast<size_t>(job.repeats);
}

}  // namespace

PassBudget::PassBudget(double seconds, size_t num_passes, double least_pass_s)
    : seconds_(seconds),
      first_share_s_(seconds / static_cast<double>(std::max<size_t>(1, num_passes))),
      least_pass_s_(least_pass_s),
      num_left_(num_passes) {}

void PassBudget::Share(Job& job) {
  const double left_s = seconds_ - watch_.Seconds();
  const double share_s =
      std::min(first_share_s_, left_s / static_cast<double>(std::max<size_t>(1, num_left_)));
  const double pass_s = std::clamp(share_s, least_pass_s_, std::max(least_pass_s_, kLongestPassS));
  SetPassTime(job, pass_s);
  LeaveOut(job);
}

void PassBudget::LeaveOut(const Job& job) {
  num_left_ -= std::min(num_left_, NumPasses(job));
}

void SetPassTime(Job& job, double pass_s) {
  job.warmup_s = std::min(kLongestWarmupS, kWarmupShare * pass_s);
  job.seconds = pass_s - job.warmup_s;
}

absl::Status CheckBudget(double budget_s, double least_s) {
  const double least_whole_s = std::ceil(least_s);
  if (budget_s >= least_whole_s) return absl::OkStatus();
  return UsageError(
      fmt::format("--budget is {:g} s, too little for a figure of every setting that is tried: "
                  "take --budget={:g}s or more",
                  budget_s, least_whole_s));
}

absl::StatusOr<std::vector<double>> TargetRuns::Measure(const Job& job, EngineKind engine) {
  std::vector<BenchCell> cells;
  for (const LoadKind& load : job.loads) cells.push_back({load, {target}});
  FOREBAY_ASSIGN_OR_RETURN(std::vector<CellResult> results,
                           RunCells(session, job, cells, engine, hooks));
  std::vector<double> gbps;
  for (CellResult& result : results) {
    gbps.push_back(result.gbps.median);
    runs.push_back(std::move(result));
  }
  return gbps;
}

}  // namespace forebay
