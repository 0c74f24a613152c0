#include "forebay/train/start/plan_ranks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/train/start/agree_on_run.h"

namespace forebay {

absl::StatusOr<PlannedRanks> PlanRanks(
    const TrainOptions& options, int num_ranks,
    const std::function<absl::StatusOr<Plan>(const TrainOptions&)>& plan_for) {
  PlannedRanks planned;
  for (int rank = 0; rank < std::min(num_ranks, kMostPlannedRanks); ++rank) {
    TrainOptions of_rank = options;
    FOREBAY_RETURN_IF_ERROR(TakePartOfRank(rank, num_ranks, of_rank));
    FOREBAY_ASSIGN_OR_RETURN(const Plan plan, plan_for(of_rank));
    planned.ranks.push_back({.host_bytes = plan.host_bytes,
                             .nvme_bytes = plan.nvme_bytes,
                             .read_bytes = plan.read_bytes_per_step,
                             .write_bytes = plan.write_bytes_per_step});
    if (plan.forecast.has_value()) planned.ranks.back().step_s = plan.forecast->step_s;
  }
  const auto cost = [](const PlannedRank& rank) {
    return std::pair(rank.step_s.value_or(0), rank.read_bytes + rank.write_bytes);
  };
  const auto slowest = std::ranges::max_element(planned.ranks, {}, cost);
  planned.slowest = static_cast<int>(std::distance(planned.ranks.begin(), slowest));
  return planned;
}

std::string FormatRanks(const PlannedRanks& planned) {
  std::string text;
  for (size_t rank = 0; rank < planned.ranks.size(); ++rank) {
    const PlannedRank& row = planned.ranks[rank];
    text += fmt::format("rank {:<5} RAM {}, NVMe {}; per step {} read + {} write{}{}\n", rank,
                        FormatBinaryBytes(row.host_bytes), FormatBinaryBytes(row.nvme_bytes),
                        FormatBytes(row.read_bytes), FormatBytes(row.write_bytes),
                        row.step_s.has_value() ? ", " + FormatDuration(*row.step_s) : "",
                        static_cast<int>(rank) == planned.slowest ? "   the slowest" : "");
  }
  return text;
}

Json ToJson(const PlannedRanks& planned) {
  Json rows = Json::array();
  for (const PlannedRank& row : planned.ranks) {
    rows.push_back({{"rank", rows.size()},
                    {"host_bytes", row.host_bytes},
                    {"nvme_bytes", row.nvme_bytes},
                    {"read_bytes_per_step", row.read_bytes},
                    {"write_bytes_per_step", row.write_bytes},
                    {"step_s", row.step_s.has_value() ? Json(*row.step_s) : Json()}});
  }
  return rows;
}

}  // namespace forebay
