// Which tensors of a model have settings of their own (--param_groups, --optimizer_args=decay_all).
#pragma once

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/offload/offload_options.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay {

// The groups of `options.param_groups`, of which a tensor belongs to the first that matches it, and
// behind them the two of all other tensors. UsageError where one matches no tensor.
absl::StatusOr<ParameterGroups> ParameterGroupsOf(const OffloadOptions& options,
                                                  const Inventory& inventory);

}  // namespace forebay
