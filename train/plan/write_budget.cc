#include "forebay/train/plan/write_budget.h"

#include <algorithm>

namespace forebay {
namespace {

bool Speculates(const Plan& plan) {
  return plan.placement.NumUpdated(UpdateTime::kAfterHand) > 0;
}

// The most that a step writes when many are taken together: with commits that do not go by steps
// as often as there can be, after each step, and with those that evaluations and exports need.
int64_t LongRunBytesOfAStep(const Plan& plan, const TrainOptions& options) {
  const int64_t bytes = (Speculates(plan) ? 2 : 1) * plan.write_bytes_per_step;
  if (plan.commit_bytes == 0) return bytes;
  if (StepsPerCommit(plan.commit_pace) == 0 && !plan.commit_pace.only_on_demand) {
    return bytes + plan.commit_bytes;
  }
  int64_t more_commits = 0;
  for (const int64_t every : {options.eval_every, options.save_every}) {
    if (every > 0) more_commits += plan.commit_bytes / every + 1;
  }
  return bytes + std::min(more_commits, plan.commit_bytes);
}

}  // namespace

int64_t MostWrittenBytes(const TrainOptions& options) {
  return static_cast<int64_t>(options.max_tbw * 1e12);
}

int64_t StoreFillBytes(const Plan& plan) {
  return plan.StoreBytes();
}

int64_t MostBytesOfAStep(const Plan& plan) {
  return (Speculates(plan) ? 2 : 1) * plan.write_bytes_per_step + plan.commit_bytes;
}

std::optional<int64_t> StepsWithinLimit(const Plan& plan, const TrainOptions& options) {
  const int64_t bytes_per_step = LongRunBytesOfAStep(plan, options);
  if (options.max_tbw == 0 || bytes_per_step == 0) return std::nullopt;
  // Those after which one more step, and saving what it leaves, would still fit; and that one.
  const int64_t before_last = MostWrittenBytes(options) -
                              plan.written_before_bytes.value_or(StoreFillBytes(plan)) -
                              2 * MostBytesOfAStep(plan);
  return before_last < 0 ? 0 : before_last / bytes_per_step + 1;
}

}  // namespace forebay
