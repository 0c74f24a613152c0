#include "forebay/measure/runs/final_turns.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// In the place of the single pass of the search, whose bytes have been written all the same.
void PutResult(std::vector<CellResult>& runs, CellResult result) {
  const auto same = std::ranges::find(runs, result.key, &CellResult::key);
  if (same == runs.end()) {
    runs.push_back(std::move(result));
  } else {
    result.written_bytes += same->written_bytes;
    *same = std::move(result);
  }
}

}  // namespace

double NextTurnPassS(const TurnsSoFar& so_far, double budget_s, size_t num_passes) {
  const double left_s = budget_s - so_far.elapsed_s;
  const auto passes = static_cast<double>(std::max<size_t>(1, num_passes));
  const double beside_s =
      so_far.num_turns == 0
          ? 0
          : std::max(0.0, so_far.elapsed_s - so_far.planned_s) / so_far.num_turns / passes;
  // Fewer turns of passes that still tell something, rather than all of them of none that do.
  for (int turns = kFinalTurns - so_far.num_turns; turns > 0; --turns) {
    const double pass_s = left_s / turns / passes - beside_s;
    if (pass_s >= kLeastPassS) return std::min(pass_s, kLongestPassS);
  }
  return 0;
}

absl::StatusOr<FinalFigures> RunFinalTurns(TargetRuns& target, std::vector<CellSetting> settings,
                                           double budget_s) {
  FinalFigures figures;
  const size_t num_settings = settings.size();
  const Stopwatch watch;
  TurnsSoFar so_far;
  const auto begin_turn = [&](std::vector<CellSetting>& next) {
    so_far.elapsed_s = watch.Seconds();
    const double pass_s = NextTurnPassS(so_far, budget_s, num_settings);
    if (pass_s == 0) return false;
    for (CellSetting& setting : next) SetPassTime(setting.job, pass_s);
    so_far.planned_s += pass_s * static_cast<double>(num_settings);
    ++so_far.num_turns;
    return true;
  };
  FOREBAY_ASSIGN_OR_RETURN(
      std::vector<CellResult> results,
      RunInTurns(target.session, std::move(settings), begin_turn, target.hooks));
  figures.num_turns = so_far.num_turns;
  for (CellResult& result : results) {
    figures.gbps.push_back(result.gbps);
    PutResult(target.runs, std::move(result));
  }
  return figures;
}

std::string FewTurnsNote(std::string_view directory, int num_turns) {
  if (num_turns >= kFinalTurns) return "";
  const std::string what =
      num_turns == 0 ? "left no time to measure the best settings again, so that their figures are "
                       "single passes"
                     : fmt::format(
                           "left time to measure the best settings again only {} of {} "
                           "times",
                           num_turns, kFinalTurns);
  return fmt::format(
      "the budget {} in '{}'; identical passes may differ by tens of percent. Take a longer "
      "--budget",
      what, directory);
}

}  // namespace forebay
