// Checks what a caller asks of a plan: the planner and all below it take it for granted. Pure.
#pragma once

#include "absl/status/status.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/offload/offload_options.h"
#include "forebay/offload/plan.h"

namespace forebay {

// UsageError that names the option, or what of `inputs` does not fit the rest.
absl::Status CheckPlanInputs(const PlanInputs& inputs, const OffloadOptions& options,
                             const MachineLimits& limits);

}  // namespace forebay
