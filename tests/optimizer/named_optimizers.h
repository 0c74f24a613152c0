// Every optimizer with constants that are used, for tests over all of them.
#pragma once

#include "forebay/optimizer/kernels/update_rule.h"

namespace forebay {

struct NamedOptimizer {
  const char* name;
  OptimizerConfig config;
};

inline constexpr NamedOptimizer kOptimizers[] = {
    {"AdamW", {.kind = OptimizerKind::kAdamW}},
    {"Adam", {.kind = OptimizerKind::kAdam}},
    {"Adagrad", {.kind = OptimizerKind::kAdagrad, .eps = 1e-10}},
    {"Lion", {.kind = OptimizerKind::kLion, .beta2 = 0.99}},
    {"Sgd", {.kind = OptimizerKind::kSgd}},
    {"SgdMomentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9}},
    {"SgdNesterov", {.kind = OptimizerKind::kSgd, .momentum = 0.9, .nesterov = true}},
};

}  // namespace forebay
