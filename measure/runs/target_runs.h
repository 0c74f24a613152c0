// Passes over one folder of an open session, for what looks for its best settings.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/clock.h"
#include "forebay/measure/runs/run_job.h"

namespace forebay {

// Borrows all that it names. Owned by one thread.
struct TargetRuns {
  BenchSession& session;
  int target = 0;  // of the session
  const BenchHooks& hooks;
  std::vector<CellResult>& runs;  // where all that is measured is added

  const BenchTarget& folder() const { return *session.targets()[static_cast<size_t>(target)]; }
  // Runs every load of `job` in the folder: the median GB/s of each, in their order. Errors of
  // RunCells.
  absl::StatusOr<std::vector<double>> Measure(const Job& job, EngineKind engine);
};

// Shares a time among the passes of a search. One that takes longer than its share (engines start,
// what is in flight drains, writes are flushed) shortens those behind it. Owned by one thread.
class PassBudget {
 public:
  // No pass takes less than `least_pass_s`, warm-up included, whatever is left.
  PassBudget(double seconds, size_t num_passes, double least_pass_s);
  // Gives `job` the time and the warm-up of its next passes.
  void Share(Job& job);
  // What was to be measured with `job` is left out.
  void LeaveOut(const Job& job);

 private:
  const double seconds_;
  const double first_share_s_;
  const double least_pass_s_;
  size_t num_left_;
  const Stopwatch watch_;
};

// The passes of a search: a shorter one tells nothing, a longer one little more.
inline constexpr double kLeastPassS = 0.05;
inline constexpr double kLongestPassS = 3.5;
// Gives each pass of `job` so many seconds, of which some are warm-up.
void SetPassTime(Job& job, double pass_s);

// UsageError that names the least budget, where `budget_s` is less than `least_s`.
absl::Status CheckBudget(double budget_s, double least_s);

}  // namespace forebay
