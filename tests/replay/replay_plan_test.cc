#include "forebay/replay/replay_plan.h"

#include <string>

#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/tensor_store.h"
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

TEST(ReplayPlan, ThirteenBillionParametersWriteTwelveBytesEach) {
  const ReplayPlan plan = PlanReplay(Llama13B(), {});
  const auto params = static_cast<double>(plan.inventory.num_params());
  EXPECT_NEAR(params, 13.016e9, 0.001e9);
  EXPECT_NEAR(static_cast<double>(plan.transfers.write_bytes), 12 * params, 0.015e9);
  // Weights twice, state once, less five blocks and a half that the window still holds and the ends
  // that are read once.
  EXPECT_NEAR(static_cast<double>(plan.transfers.read_bytes), 14 * params, 4.5e9);
  EXPECT_LT(static_cast<double>(plan.transfers.read_bytes), 14 * params);
  EXPECT_EQ(Total(plan.gradient_area_bytes), 0);
  EXPECT_NEAR(static_cast<double>(plan.placement.host_gradient_bytes), 2 * params, 0.001e9);
  // Two slots, with two copies of the checksums of each: a ten-thousandth of the whole.
  const auto seal_bytes = static_cast<double>(TensorStore::SealBytes(plan.tiles, kMostSlots));
  EXPECT_NEAR(seal_bytes, 2 * params / kSealElems * 4 * 8, 2e6);
  EXPECT_NEAR(static_cast<double>(plan.store_bytes), 24 * params + 2 * seal_bytes, 0.001e9);
}

TEST(ReplayPlan, SpilledGradientsCostTwoBytesMoreEachWayAndLittleMemory) {
  const ReplayPlan held = PlanReplay(Llama13B(), {});
  const ReplayPlan spilled = PlanReplay(Llama13B(), {.gradients = Tier::kNvme});
  const int64_t elems = held.inventory.num_padded_elems();
  EXPECT_EQ(spilled.transfers.read_bytes, held.transfers.read_bytes + 2 * elems);
  EXPECT_EQ(spilled.transfers.write_bytes, held.transfers.write_bytes + 2 * elems);
  EXPECT_EQ(Total(spilled.gradient_area_bytes), 2 * elems);
  // The window of three blocks, four staging tiles, and one layer's gradient.
  EXPECT_LT(spilled.host_bytes, int64_t{3'400'000'000});
}

TEST(ReplayPlan, DurabilityCostsWhatTheDocumentationSays) {
  const ReplayPlan none = PlanReplay(Llama13B(), {.durability = ReplayDurability::kNone});
  const ReplayPlan step = PlanReplay(Llama13B(), {});
  const ReplayPlan replay = PlanReplay(Llama13B(), {.durability = ReplayDurability::kReplay});
  const auto params = static_cast<double>(step.inventory.num_params());
  EXPECT_NEAR(static_cast<double>(none.store_bytes), 12 * params, 0.02e9);
  EXPECT_EQ(none.transfers.read_bytes, step.transfers.read_bytes);
  EXPECT_EQ(none.transfers.write_bytes, step.transfers.write_bytes - step.transfers.commit_bytes);
  EXPECT_EQ(replay.transfers.read_bytes, step.transfers.read_bytes);
  EXPECT_EQ(replay.transfers.write_bytes, step.transfers.write_bytes +
                                              2 * step.inventory.num_padded_elems() +
                                              TensorStore::IntentBytes(step.tiles));
  EXPECT_NEAR(static_cast<double>(replay.store_bytes - step.store_bytes), 2 * params, 0.01e9);
}

TEST(WithFewerBlocks, KeepsBothEndsAndTheFirstBlocks) {
  const Inventory inventory = Llama13B();
  const Inventory fewer = WithFewerBlocks(inventory, 2);
  std::vector<std::string> names;
  for (const LayerSpec& layer : fewer.layers()) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("embed", "layers.0", "layers.1", "head"));
  EXPECT_EQ(fewer.layers()[1].num_elems, inventory.layers()[1].num_elems);
  EXPECT_EQ(fewer.layers()[3].num_elems, inventory.layers()[41].num_elems);
  EXPECT_EQ(WithFewerBlocks(inventory, 40).num_params(), inventory.num_params());
}

}  // namespace
}  // namespace forebay
