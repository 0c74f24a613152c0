// The settings of a plan that make the fastest step by its forecast, where the machine's speeds are
// known: the number of layers whose gradients are applied at once, and settings that one could do
// better with. No bit of a run depends on that number. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// A plan with exactly these options.
using PlanMaker = std::function<absl::StatusOr<Plan>(const TrainOptions& options)>;

// `plan` is that of `options`. Where these leave it open (OffloadPlan::may_speculate, no
// --speculate_layers), the fastest of plans with other numbers of such layers, if it saves enough
// to be worth its writes; else `plan`.
Plan WithFastestSpeculation(Plan plan, const TrainOptions& options, const PlanMaker& make);

// The least changes of one setting each that make the step shorter by a twentieth or more, fastest
// first; none where the plan has no forecast. `make`: with the choice above.
std::vector<BetterSetting> BetterSettings(const Plan& plan, const TrainOptions& options,
                                          const PlanMaker& make);

}  // namespace forebay
