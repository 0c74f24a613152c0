#include "forebay/replay/replay_inputs.h"

#include <string>

#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/replay/must_plan.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

// Llama-2 13B's layers, each as one tensor.
Inventory Llama13B() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {32000, 5120}, 0, true);
  for (int block = 0; block < 40; ++block) {
    const std::string name = "layers." + std::to_string(block);
    inventory.BeginLayer(name);
    inventory.Add(name, {4 * 5120 + 3 * 13824, 5120}, 0, true);
    inventory.Add(name + ".norms", {2 * 5120}, 0, false);
  }
  inventory.BeginLayer("head");
  inventory.Add("norm", {5120}, 0, false);
  inventory.Add("head", {32000, 5120}, 0, true);
  return inventory;
}

ReplayInputs Llama13BInputs() {
  return {.inventory = Llama13B()};
}

TEST(PlanReplay, ThirteenBillionParametersWriteTwelveBytesEach) {
  const ReplayInputs inputs = Llama13BInputs();
  const OffloadPlan plan = MustPlan(inputs);
  const auto params = static_cast<double>(inputs.inventory.num_params());
  EXPECT_NEAR(params, 13.016e9, 0.001e9);
  EXPECT_NEAR(static_cast<double>(plan.write_bytes_per_step), 12 * params, 0.015e9);
  // Weights twice, state once, less five blocks and a half that the window still holds and the ends
  // that are read once.
  EXPECT_NEAR(static_cast<double>(plan.read_bytes_per_step), 14 * params, 4.5e9);
  EXPECT_LT(static_cast<double>(plan.read_bytes_per_step), 14 * params);
  EXPECT_EQ(Total(plan.gradient_area_bytes), 0);
  EXPECT_NEAR(static_cast<double>(plan.placement.host_gradient_bytes), 2 * params, 0.001e9);
  // Two slots, with two copies of the checksums of each: a ten-thousandth of the whole.
  const auto seal_bytes = static_cast<double>(TensorStore::SealBytes(plan.tiles, kMostSlots));
  EXPECT_NEAR(seal_bytes, 2 * params / kSealElems * 4 * 8, 2e6);
  EXPECT_NEAR(static_cast<double>(plan.nvme_bytes), 24 * params + 2 * seal_bytes, 0.001e9);
}

TEST(PlanReplay, SpilledGradientsCostTwoBytesMoreEachWayAndLittleMemory) {
  ReplayInputs inputs = Llama13BInputs();
  const OffloadPlan held = MustPlan(inputs);
  inputs.offload.gradients_tier = TierChoice::kNvme;
  const OffloadPlan spilled = MustPlan(inputs);
  const int64_t elems = inputs.inventory.num_padded_elems();
  EXPECT_EQ(spilled.read_bytes_per_step, held.read_bytes_per_step + 2 * elems);
  EXPECT_EQ(spilled.write_bytes_per_step, held.write_bytes_per_step + 2 * elems);
  EXPECT_EQ(Total(spilled.gradient_area_bytes), 2 * elems);
  // The window of three blocks, four staging tiles, and one layer's gradient.
  EXPECT_LT(BufferBytes(spilled), int64_t{3'400'000'000});
}

TEST(PlanReplay, DurabilityCostsWhatTheDocumentationSays) {
  ReplayInputs inputs = Llama13BInputs();
  const OffloadPlan step = MustPlan(inputs);
  inputs.offload.durability = Durability::kNone;
  const OffloadPlan none = MustPlan(inputs);
  const auto params = static_cast<double>(inputs.inventory.num_params());
  EXPECT_NEAR(static_cast<double>(none.nvme_bytes), 12 * params, 0.02e9);
  EXPECT_EQ(none.read_bytes_per_step, step.read_bytes_per_step);
  EXPECT_EQ(none.write_bytes_per_step, step.write_bytes_per_step - step.commit_bytes);
}

TEST(WithFewerBlocks, KeepsBothEndsAndTheFirstBlocks) {
  ReplayInputs inputs = Llama13BInputs();
  inputs.stripe_weights = {2, 1};
  const ReplayInputs slice = WithFewerBlocks(inputs, 2);
  const Inventory& inventory = inputs.inventory;
  const Inventory& fewer = slice.inventory;
  std::vector<std::string> names;
  for (const LayerSpec& layer : fewer.layers()) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("embed", "layers.0", "layers.1", "head"));
  EXPECT_EQ(fewer.layers()[1].num_elems, inventory.layers()[1].num_elems);
  EXPECT_EQ(fewer.layers()[3].num_elems, inventory.layers()[41].num_elems);
  EXPECT_EQ(slice.stripe_weights, inputs.stripe_weights);
  EXPECT_EQ(WithFewerBlocks(inputs, 40).inventory.num_params(), inventory.num_params());
}

}  // namespace
}  // namespace forebay
