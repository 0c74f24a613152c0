// Where training state lives and how it is updated: what every caller of the engine decides, the
// trainer of train/ and those that bring their own model and data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/dtype.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/swap/tiles/layout.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/window/step_transfers.h"

namespace forebay {

// A crash leaves the last committed step (kStep), or only the exports (kNone). kAuto: kStep if the
// disk has room for it.
enum class Durability : uint8_t { kAuto, kNone, kStep };
constexpr std::string_view NameOf(Durability durability) {
  return durability == Durability::kAuto   ? "auto"
         : durability == Durability::kNone ? "none"
                                           : "step";
}

// Finished gradients are held until the norm of all is known, or applied at once in the hope that
// nothing clips. kAuto: held, but where nothing clips, those that do not fit in RAM are applied at
// once (plan.h).
enum class GradientChoice : uint8_t { kAuto, kHold, kSpeculate };

// Where activations wait for their backward pass. kNvme: all but those that come back at once.
// kAuto: as MakePlan (train/plan) chooses; MakeOffloadPlan takes it for kRam.
enum class ActivationsTier : uint8_t { kAuto, kRam, kNvme };
constexpr std::string_view NameOf(ActivationsTier tier) {
  return tier == ActivationsTier::kAuto ? "auto" : tier == ActivationsTier::kRam ? "ram" : "nvme";
}

// Tensors with settings of their own.
struct ParamGroupOption {
  std::string match;                   // as fnmatch(3), of the names in the inventory
  std::optional<double> lr;            // in place of OffloadOptions::lr
  std::optional<double> weight_decay;  // the same
};

struct OffloadOptions {
  // Memory and disks.
  int64_t ram_bytes = 0;  // budget of the process; 0: what is available less a margin (planner)
  std::vector<std::string> nvme;     // folders of the store; empty: the caller's own
  std::vector<double> nvme_weights;  // of them, in proportion; empty: as fast as they are
  EngineKind engine = EngineKind::kAuto;
  bool engine_strict = false;  // refuses a lesser engine than the one asked for
  int io_threads = 2;          // of the threads engine
  std::string bench;           // io.json of `swap-bench tune`; empty: none
  double rated_tbw = 600;      // endurance of the drive in TB written

  // Tiers and layout.
  Layout layout = Layout::kBf16;
  DType grad_dtype = DType::kBF16;  // that gradients are rounded to as they are handed over
  int64_t tile_elems = kDefaultTileElems;
  TierChoice weights_tier = TierChoice::kAuto;
  TierChoice state_tier = TierChoice::kAuto;
  GradientChoice gradients = GradientChoice::kAuto;
  // The number of layers, spread evenly, whose gradients are applied at once; those of the others
  // are held. 0: as `gradients` has it, kSpeculate of all. Not with kHold.
  int64_t speculate_layers = 0;
  // Where gradients wait that are held; all are where this is not kAuto.
  TierChoice gradients_tier = TierChoice::kAuto;
  ActivationsTier activations_tier = ActivationsTier::kAuto;
  std::optional<StepBuffers> buffers;  // empty: as comfortable as there is memory for

  // The update.
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 2e-5;  // what rates of groups are relative to
  double weight_decay = 0.01;
  bool decay_all = false;  // also norms and biases
  std::vector<ParamGroupOption> param_groups;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;    // SGD
  bool nesterov = false;  // SGD with momentum
  double clip = 1.0;      // global L2 norm; 0: off
  // The first step that does not see the update of the step before, except after a commit; 0: none.
  int64_t delay_update_from = 0;
  int update_threads = 0;  // 0: as many as compute

  // Between ranks: memory of the gradients that are being summed at one time; 0: kAutoBucketBytes
  // (ranks/gradient_sum.h).
  int64_t reduce_bucket_bytes = 0;
  DType reduce_dtype = DType::kF32;  // of gradients on their way between ranks; sums are fp32

  // Durability.
  Durability durability = Durability::kAuto;
  int64_t commit_every = 0;  // steps; 0: as commit_policy.h has it
};

OptimizerConfig RuleOf(const OffloadOptions& options);

// What contradicts what among the options, a sentence each, in the words of the flags. Empty:
// nothing does. What only a plan finds out is not among it (check_plan_inputs.h).
std::vector<std::string> ContradictionsOf(const OffloadOptions& options);

}  // namespace forebay
