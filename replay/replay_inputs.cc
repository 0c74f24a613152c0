#include "forebay/replay/replay_inputs.h"

#include <limits>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

OffloadOptions ReplayOffload() {
  OffloadOptions offload;
  offload.ram_bytes = std::numeric_limits<int64_t>::max();
  offload.weights_tier = offload.state_tier = TierChoice::kNvme;
  // A run's staging takes memory that is left. Nothing is here.
  offload.buffers = StepBufferChoices(1).front();
  offload.gradients = GradientChoice::kHold;
  offload.gradients_tier = TierChoice::kHost;
  offload.durability = Durability::kStep;
  return offload;
}

absl::StatusOr<OffloadPlan> PlanReplay(const ReplayInputs& inputs) {
  PlanInputs model;
  model.inventory = inputs.inventory;
  model.chain.num_layers = inputs.inventory.num_layers();
  model.chain.loss_reads_first = inputs.loss_reads_first;
  if (inputs.offload.activations_tier == ActivationsTier::kNvme) {
    model.activation_bytes = inputs.activation_bytes;
  }
  model.step_memory = {
      {"gradient of one layer (fp32)", inputs.inventory.largest_layer_elems() * 4, 0, ""}};
  MachineLimits limits;
  limits.disks.clear();
  for (const int64_t weight : inputs.stripe_weights) limits.disks.push_back({.weight = weight});
  return MakeOffloadPlan(model, inputs.offload, limits);
}

ReplayInputs WithFewerBlocks(const ReplayInputs& inputs, int num_blocks) {
  const Inventory& inventory = inputs.inventory;
  const int last = inventory.num_layers() - 1;
  FOREBAY_CHECK(num_blocks >= 1 && num_blocks <= last - 1);
  Inventory fewer;
  for (int layer = 0; layer <= last; ++layer) {
    if (layer > num_blocks && layer < last) continue;
    const LayerSpec& spec = inventory.layers()[layer];
    fewer.BeginLayer(spec.name);
    for (int i = 0; i < spec.num_tensors; ++i) {
      const TensorSpec& tensor = inventory.tensors()[spec.first_tensor + i];
      fewer.Add(tensor.name, tensor.shape, tensor.role, tensor.decay);
    }
  }
  return {std::move(fewer), inputs.loss_reads_first, inputs.activation_bytes, inputs.offload,
          inputs.stripe_weights};
}

}  // namespace forebay
