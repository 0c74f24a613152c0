#include "forebay/capi/c_optimizer.h"

namespace forebay::capi {

absl::StatusOr<OptimizerKind> OptimizerOf(int32_t optimizer) {
  switch (optimizer) {
    case FOREBAY_ADAMW:
      return OptimizerKind::kAdamW;
    case FOREBAY_ADAM:
      return OptimizerKind::kAdam;
    case FOREBAY_ADAGRAD:
      return OptimizerKind::kAdagrad;
    case FOREBAY_LION:
      return OptimizerKind::kLion;
    case FOREBAY_SGD:
      return OptimizerKind::kSgd;
    default:
      return UsageError(
          fmt::format("optimizer is {}, and has to be one of FOREBAY_ADAMW, _ADAM, "
                      "_ADAGRAD, _LION and _SGD",
                      optimizer));
  }
}

absl::StatusOr<ParameterGroup> GroupOf(const forebay_group& group, OptimizerKind optimizer) {
  if (!std::isfinite(group.lr) || !std::isfinite(group.weight_decay)) {
    return UsageError(
        fmt::format("a group has the lr {} and the weight_decay {}", group.lr, group.weight_decay));
  }
  ParameterGroup result = {.lr_scale = group.lr, .weight_decay = group.weight_decay};
  if (HasBetas(optimizer)) {
    result.beta1 = group.beta1;
    result.beta2 = group.beta2;
  }
  if (optimizer == OptimizerKind::kSgd) result.beta1 = group.beta1;
  if (HasEps(optimizer)) result.eps = group.eps;
  result.frozen = group.frozen != 0;
  return result;
}

}  // namespace forebay::capi
