// The settings that a search ends with, measured again in interleaved turns. A search tries each
// setting once, and identical passes differ by tens of percent: of many single shots the best is
// the luckiest one. So the shots that chose a setting do not count towards its figure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/target_runs.h"

namespace forebay {

inline constexpr int kFinalTurns = 3;

struct FinalFigures {
  int num_turns = 0;         // kFinalTurns, or as many as there was time for
  std::vector<Spread> gbps;  // by setting, over the turns; empty without any
};

// Measures every setting once, then all again, as often as `budget_s` has time for. Their results
// take the place of what `target.runs` holds of the same settings. Requires: a load and the
// target's own cell in each setting. Errors of RunInTurns.
absl::StatusOr<FinalFigures> RunFinalTurns(TargetRuns& target, std::vector<CellSetting> settings,
                                           double budget_s);

// What about fewer turns than kFinalTurns is to be known; "" of enough.
std::string FewTurnsNote(std::string_view directory, int num_turns);

// ---- For tests

struct TurnsSoFar {
  int num_turns = 0;
  double elapsed_s = 0;
  double planned_s = 0;  // what their passes were given; engines start and flush beside it
};
// Seconds, warm-up included, of each of the `num_passes` passes of the next turn; 0: there is no
// time for one, or no need. Pure.
double NextTurnPassS(const TurnsSoFar& so_far, double budget_s, size_t num_passes);

}  // namespace forebay
