// The optimizers: which formula, its constants, and which moments it keeps. Sources: AdamW,
// Loshchilov & Hutter 2019 (Algorithm 2); Adam, Kingma & Ba 2015, its decay as torch.optim.Adam
// (L2); Adagrad, Duchi et al. 2011; Lion, Chen et al. 2023 (Algorithm 2); SGD, Sutskever et al.
// 2013, in the form of torch.optim.SGD. Weight decay is of AdamW and Lion decoupled; the others add
// it to the gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "forebay/swap/tiles/layout.h"

namespace forebay {

enum class OptimizerKind : uint8_t { kAdamW, kAdam, kAdagrad, kLion, kSgd };

constexpr std::string_view NameOf(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kSgd:
      return "sgd";
  }
  return "";
}

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;     // AdamW, Adam, Lion
  double beta2 = 0.999;   // AdamW, Adam, Lion
  double eps = 1e-8;      // AdamW, Adam, Adagrad
  double momentum = 0;    // SGD
  bool nesterov = false;  // SGD with momentum
};

constexpr bool HasBetas(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam ||
         kind == OptimizerKind::kLion;
}
constexpr bool HasEps(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam ||
         kind == OptimizerKind::kAdagrad;
}

// The first moment: an average of gradients, of either sign.
constexpr bool HasFirstMoment(const OptimizerConfig& config) {
  return config.kind == OptimizerKind::kSgd ? config.momentum != 0
                                            : config.kind != OptimizerKind::kAdagrad;
}
// The second moment: an average, or Adagrad's sum, of squares.
constexpr bool HasSecondMoment(const OptimizerConfig& config) {
  return config.kind == OptimizerKind::kAdamW || config.kind == OptimizerKind::kAdam ||
         config.kind == OptimizerKind::kAdagrad;
}

constexpr MomentSet MomentsOf(const OptimizerConfig& config) {
  return {HasFirstMoment(config), HasSecondMoment(config)};
}

// The scalars of one update, the same for every run of a parameter group.
struct UpdateScalars {
  int64_t step = 1;  // of updates made, from 1; for the bias corrections and the rounding
  double lr = 0;
  double gradient_scale = 1;  // multiplies every gradient (clipping, loss scale)
  // In place of the configuration's, where a schedule moves them or a parameter group has its own;
  // beta1 of SGD's momentum. Requires: eps > 0.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> eps = std::nullopt;
  uint64_t rounding_seed = 0;  // of moments that are kept in less than fp32
};

}  // namespace forebay
