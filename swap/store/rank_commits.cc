#include "forebay/swap/store/rank_commits.h"

#include <algorithm>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

CommitStanding StandingOf(TensorStore& store) {
  const std::optional<CommitInfo> prepared = store.Prepared();
  return {.step = store.committed().step,
          .step_of_tiles = store.StepOfTiles(),
          .prepared_step = prepared.has_value() ? prepared->step : 0};
}

namespace {

bool HasTilesOf(const CommitStanding& newest, const CommitStanding& its) {
  return its.step_of_tiles == newest.step_of_tiles;
}

bool HasPrepared(const CommitStanding& newest, const CommitStanding& its) {
  return its.prepared_step == newest.step && newest.step_of_tiles == newest.step;
}

}  // namespace

absl::StatusOr<size_t> NewestRank(std::span<const CommitStanding> ranks) {
  FOREBAY_CHECK(!ranks.empty());
  const auto newest = std::ranges::max_element(ranks, {}, &CommitStanding::step);
  for (const CommitStanding& its : ranks) {
    if (HasTilesOf(*newest, its) || HasPrepared(*newest, its)) continue;
    return CorruptError(fmt::format(
        "the stores of the ranks do not belong together: that of rank {} is at step {}, that of "
        "rank {} at step {}, and no crash leaves them so. One of them is a copy from another time, "
        "or was repaired. Put back the stores that belong together",
        newest - ranks.begin(), newest->step, &its - ranks.data(), its.step));
  }
  return static_cast<size_t>(newest - ranks.begin());
}

absl::Status BringToStep(const CommitStanding& newest, const Json& trainer, TensorStore& store) {
  if (store.committed().step == newest.step) return absl::OkStatus();
  if (store.StepOfTiles() == newest.step_of_tiles) {
    return store.CommitSkipped({newest.step, trainer});
  }
  FOREBAY_CHECK(StandingOf(store).prepared_step == newest.step);
  return store.PublishPrepared();
}

}  // namespace forebay
