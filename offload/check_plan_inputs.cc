#include "forebay/offload/check_plan_inputs.h"

#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

absl::Status CheckLayers(const PlanInputs& inputs) {
  const int num_layers = inputs.inventory.num_streamed_layers();
  if (inputs.pass != PassKind::kChain && num_layers == 0) {
    return UsageError("the inventory has no layer that a step goes through");
  }
  if (inputs.pass == PassKind::kChain &&
      (num_layers < 3 || inputs.chain.num_layers != num_layers)) {
    return UsageError(fmt::format(
        "the inventory has {} layers and the chain {}: a step goes through the same layers in "
        "both, at least three, of which the first takes the input and the last makes the loss",
        num_layers, inputs.chain.num_layers));
  }
  return inputs.inventory.CheckRawLayersAreLast();
}

absl::Status CheckActivations(const PlanInputs& inputs, const OffloadOptions& options) {
  if (inputs.pass != PassKind::kChain && inputs.activation_bytes > 0) {
    return UsageError(
        "activation_bytes: the activations of a module are the caller's own. Leave them at 0, and "
        "count their memory in step_memory");
  }
  if (options.activations_tier == ActivationsTier::kNvme && inputs.activation_bytes == 0) {
    return UsageError(
        "activations_tier=nvme: how large an activation is has to be known (activation_bytes), and "
        "whoever computes takes the session's buffers for them");
  }
  return absl::OkStatus();
}

absl::Status CheckTiers(const PlanInputs& inputs, const OffloadOptions& options) {
  if (options.weights_tier == TierChoice::kDevice ||
      options.gradients_tier == TierChoice::kDevice) {
    return UsageError(
        "weights_tier and gradients_tier: only the optimizer's state may live on a GPU "
        "(state_tier). Use auto, host or nvme");
  }
  if (options.state_tier == TierChoice::kDevice && inputs.device_state_bytes == 0) {
    return UsageError(
        "state_tier=gpu: nothing is computed on a GPU, or its memory leaves no room for the "
        "optimizer's state. Use state_tier=auto, or compute there (--device=cuda) with a larger "
        "--gpu_mem");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlanInputs(const PlanInputs& inputs, const OffloadOptions& options,
                             const MachineLimits& limits) {
  FOREBAY_RETURN_IF_ERROR(CheckLayers(inputs));
  const std::vector<std::string> contradictions = ContradictionsOf(options);
  if (!contradictions.empty())
    return UsageError(fmt::format("{}", fmt::join(contradictions, "; ")));
  FOREBAY_RETURN_IF_ERROR(CheckActivations(inputs, options));
  if (options.tile_elems <= 0 || options.tile_elems % kLayerAlignElems != 0) {
    return UsageError(
        fmt::format("tile_elems={} is not a multiple of {}", options.tile_elems, kLayerAlignElems));
  }
  FOREBAY_RETURN_IF_ERROR(CheckTiers(inputs, options));
  const StepBuffers buffers = options.buffers.value_or(StepBuffers());
  if (buffers.num_staging_tiles < 2 || buffers.num_block_buffers < 2) {
    return UsageError(fmt::format(
        "a step needs two staging tiles and two buffers for blocks, and {} and {} are asked for",
        buffers.num_staging_tiles, buffers.num_block_buffers));
  }
  // The folders of an existing store may be named differently: only some of them, or their parents.
  if (!inputs.store_exists && !options.nvme.empty() && limits.disks.size() != options.nvme.size()) {
    return UsageError(fmt::format("nvme names {} folders, and the limits are of {} disks",
                                  options.nvme.size(), limits.disks.size()));
  }
  return absl::OkStatus();
}

}  // namespace forebay
