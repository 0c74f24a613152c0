#include "forebay/train/plan/write_budget.h"

#include <algorithm>

namespace forebay {

int64_t MostWrittenBytes(const TrainOptions& options) {
  return static_cast<int64_t>(options.max_tbw * 1e12);
}

int64_t StoreFillBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlanStripe& stripe : plan.stripes) bytes += stripe.nvme_bytes;
  return bytes;
}

int64_t MostBytesOfAStep(const Plan& plan) {
  const bool speculates = plan.placement.NumUpdated(UpdateTime::kAfterHand) > 0;
  return (speculates ? 2 : 1) * plan.write_bytes_per_step + plan.commit_bytes;
}

std::optional<int64_t> StepsWithinLimit(const Plan& plan, const TrainOptions& options) {
  if (options.max_tbw == 0 || plan.write_bytes_per_step == 0) return std::nullopt;
  // Those after which one more step, and saving what it leaves, would still fit; and that one.
  const int64_t before_last =
      MostWrittenBytes(options) - StoreFillBytes(plan) - 2 * MostBytesOfAStep(plan);
  return before_last < 0 ? 0 : before_last / plan.write_bytes_per_step + 1;
}

}  // namespace forebay
