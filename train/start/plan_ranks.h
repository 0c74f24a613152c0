// What each rank of a run needs: `plan --ranks`. Ranks that divide the state differ by some blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// The most that are planned one by one; of more the first so many.
inline constexpr int kMostPlannedRanks = 64;

struct PlannedRank {
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
  int64_t read_bytes = 0;  // per step, from disk
  int64_t write_bytes = 0;
  std::optional<double> step_s;  // where the speeds are known
};

struct PlannedRanks {
  std::vector<PlannedRank> ranks;
  // The one that the others wait for: with the longest step, else with the most bytes per step.
  int slowest = 0;
};

// `options`: of the whole run. Errors of `plan_for`, and of TakePartOfRank.
absl::StatusOr<PlannedRanks> PlanRanks(
    const TrainOptions& options, int num_ranks,
    const std::function<absl::StatusOr<Plan>(const TrainOptions&)>& plan_for);

std::string FormatRanks(const PlannedRanks& planned);
// [{"rank", "host_bytes", "nvme_bytes", "read_bytes_per_step", "write_bytes_per_step", "step_s"}].
Json ToJson(const PlannedRanks& planned);

}  // namespace forebay
