// The plan of a replay that has one.
#pragma once

#include <utility>

#include "forebay/base/check.h"
#include "forebay/replay/replay_inputs.h"

namespace forebay {

inline OffloadPlan MustPlan(const ReplayInputs& inputs) {
  absl::StatusOr<OffloadPlan> plan = PlanReplay(inputs);
  FOREBAY_CHECK(plan.ok());
  return *std::move(plan);
}

}  // namespace forebay
