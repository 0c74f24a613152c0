// The optimizer settings of c.h as ours.
#pragma once

#include <cmath>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/capi/c.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay::capi {

absl::StatusOr<OptimizerKind> OptimizerOf(int32_t optimizer);

// With a step's rate of 1.
absl::StatusOr<ParameterGroup> GroupOf(const forebay_group& group, OptimizerKind optimizer);

}  // namespace forebay::capi
