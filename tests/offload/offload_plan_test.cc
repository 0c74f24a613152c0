// Plans for what is no decoder: tensors of odd shapes, with no flags of a trainer.
#include "forebay/offload/plan.h"

#include <cstdint>
#include <numeric>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// Five layers of a module: a vector, odd matrices, a scalar.
PlanInputs ModuleInputs() {
  PlanInputs inputs;
  const int64_t sizes[] = {77, 40'001, 1, 39'999, 123};
  for (int layer = 0; layer < 5; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    inputs.inventory.BeginLayer(name);
    inputs.inventory.Add(name + ".weight", {sizes[layer], 3}, 0, true);
    inputs.inventory.Add(name + ".bias", {sizes[layer]}, 0, false);
  }
  inputs.chain.num_layers = 5;
  inputs.step_memory = {{"activations", int64_t{5} << 20, 0, "a smaller batch"}};
  return inputs;
}

OffloadOptions OptionsWith(int64_t ram_bytes) {
  OffloadOptions options;
  options.ram_bytes = ram_bytes;
  options.tile_elems = 16384;
  return options;
}

TEST(OffloadPlan, PlansAnyInventoryInsideItsBudget) {
  const PlanInputs inputs = ModuleInputs();
  const auto plan = MakeOffloadPlan(inputs, OptionsWith(int64_t{256} << 20), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->host_bytes, plan->ram_budget_bytes);
  int64_t host_bytes = 0;
  int64_t activations = 0;
  for (const PlanTerm& term : plan->terms) {
    host_bytes += term.host_bytes;
    if (term.name == "activations") activations = term.host_bytes;
  }
  EXPECT_EQ(host_bytes, plan->host_bytes);
  EXPECT_EQ(activations, inputs.step_memory[0].host_bytes);
  EXPECT_EQ(plan->schedule,
            ChainSchedule({.num_layers = 5, .update_times = plan->placement.update_times}));
  // All of it fits in RAM, and is written for a commit alone.
  EXPECT_EQ(plan->read_bytes_per_step, 0);
}

TEST(OffloadPlan, WhatIsInNobodysRamIsMovedByEveryStep) {
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.weights_tier = options.state_tier = TierChoice::kNvme;
  const PlanInputs inputs = ModuleInputs();
  const auto plan = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const StepTransfers transfers =
      CountTransfers(plan->schedule, plan->window, plan->placement, plan->tiles, 2);
  EXPECT_EQ(plan->read_bytes_per_step, transfers.read_bytes);
  EXPECT_GE(plan->read_bytes_per_step, 12 * inputs.inventory.num_params());
}

TEST(OffloadPlan, HeldGradientsWaitWhereTheyAreAskedTo) {
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.weights_tier = options.state_tier = TierChoice::kNvme;
  const PlanInputs inputs = ModuleInputs();
  const int64_t all_bytes = 2 * inputs.inventory.num_padded_elems();
  options.gradients_tier = TierChoice::kHost;
  auto plan = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.host_gradient_bytes, all_bytes);
  const int64_t read_bytes = plan->read_bytes_per_step;
  // Not speculative, although nothing clips.
  options.gradients_tier = TierChoice::kNvme;
  options.clip = 0;
  plan = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.NumUpdated(UpdateTime::kAfterHand), 0);
  EXPECT_EQ(plan->placement.host_gradient_bytes, 0);
  EXPECT_EQ(Total(plan->gradient_area_bytes), all_bytes);
  EXPECT_EQ(plan->read_bytes_per_step, read_bytes + all_bytes);
}

int64_t HostBytesOf(const OffloadPlan& plan, const std::string& name) {
  for (const PlanTerm& term : plan.terms) {
    if (term.name == name) return term.host_bytes;
  }
  return -1;
}

TEST(OffloadPlan, AModuleHasNoActivationsOfThePlans) {
  PlanInputs inputs = ModuleInputs();
  inputs.pass = PassKind::kModule;
  OffloadOptions options;
  options.ram_bytes = int64_t{256} << 20;
  EXPECT_TRUE(MakeOffloadPlan(inputs, options, {}).ok());
  inputs.activation_bytes = 100'000;
  const auto plan = MakeOffloadPlan(inputs, options, {});
  EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kUsage);
}

// Five layers have four activations, of which the first is spilled.
TEST(OffloadPlan, SpilledActivationsTakeLessMemoryAndTheirRoomAndBytesOnDisk) {
  PlanInputs inputs = ModuleInputs();
  inputs.activation_bytes = 100'000;
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  const auto in_ram = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(in_ram.ok()) << in_ram.status();
  const int64_t four = HostBuffer::ChargedBytes(4 * 100'000);  // whole pages
  EXPECT_EQ(HostBytesOf(*in_ram, "activation checkpoints"), four);
  EXPECT_EQ(in_ram->activations, SpilledActivationsShape());
  EXPECT_EQ(in_ram->ScratchBytes(), in_ram->gradient_area_bytes);
  options.activations_tier = ActivationsTier::kNvme;
  const auto on_disk = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(on_disk.ok()) << on_disk.status();
  constexpr int64_t kBlocks = 25 * 4096;
  EXPECT_EQ(HostBytesOf(*on_disk, "activation checkpoints"), 3 * kBlocks);
  EXPECT_EQ(
      on_disk->activations,
      (SpilledActivationsShape{.num_spilled = 1, .num_buffers = 3, .activation_bytes = kBlocks}));
  EXPECT_EQ(on_disk->host_bytes - in_ram->host_bytes, 3 * kBlocks - four);
  EXPECT_EQ(on_disk->nvme_bytes - in_ram->nvme_bytes, kBlocks);
  EXPECT_EQ(on_disk->stripes[0].nvme_bytes - in_ram->stripes[0].nvme_bytes, kBlocks);
  EXPECT_EQ(Total(on_disk->ScratchBytes()) - Total(in_ram->ScratchBytes()), kBlocks);
  EXPECT_EQ(on_disk->read_bytes_per_step - in_ram->read_bytes_per_step, kBlocks);
  EXPECT_EQ(on_disk->write_bytes_per_step - in_ram->write_bytes_per_step, kBlocks);
}

TEST(OffloadPlan, ActivationsOfWhichNothingIsKnownCannotBeSpilled) {
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.activations_tier = ActivationsTier::kNvme;
  const absl::Status refused = MakeOffloadPlan(ModuleInputs(), options, {}).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("activation_bytes"));
}

TEST(OffloadPlan, GradientsThatHaveToBeInRamCountInWhatIsNeeded) {
  const PlanInputs inputs = ModuleInputs();
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.buffers = {.num_staging_tiles = 2, .num_block_buffers = 2};
  options.weights_tier = options.state_tier = TierChoice::kNvme;
  options.gradients_tier = TierChoice::kHost;
  const auto plan = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Staging of gradients on disk is needed until it is known that there are none.
  const int64_t staged = options.buffers->num_staging_tiles * plan->tiles.max_tile_elems() *
                         SizeOf(options.grad_dtype);
  options.ram_bytes = plan->host_bytes + staged;
  EXPECT_TRUE(MakeOffloadPlan(inputs, options, {}).ok());
  --options.ram_bytes;
  const absl::Status refused = MakeOffloadPlan(inputs, options, {}).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("gradients in RAM"));
  options.gradients_tier = TierChoice::kAuto;
  EXPECT_TRUE(MakeOffloadPlan(inputs, options, {}).ok());
}

TEST(OffloadPlan, BuffersAreThoseThatAreAskedForOrTheMostThatFit) {
  const PlanInputs inputs = ModuleInputs();
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  const auto most = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->num_staging_tiles, 4);
  EXPECT_EQ(most->window.num_block_buffers, 3);
  options.buffers = {.num_staging_tiles = 7, .num_block_buffers = 2};
  const auto asked = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->num_staging_tiles, 7);
  EXPECT_EQ(asked->window.num_block_buffers, 2);
}

// So that the backward pass reads all of the first layer, which is updated behind it.
TEST(OffloadPlan, AModuleThatIsUpdatedInBackwardStagesItsWholeFirstLayer) {
  PlanInputs inputs = ModuleInputs();
  inputs.pass = PassKind::kModule;
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.gradients = GradientChoice::kSpeculate;
  options.speculate_layers = 4;
  options.tile_elems = 4096;
  inputs.inventory = {};
  inputs.inventory.BeginLayer("first");
  inputs.inventory.Add("first.weight", {40, 2048}, 0, true);
  for (int layer = 1; layer < 5; ++layer) {
    inputs.inventory.BeginLayer("layer" + std::to_string(layer));
    inputs.inventory.Add("layer" + std::to_string(layer) + ".weight", {2048}, 0, true);
  }
  const auto plan = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.update_times[0], UpdateTime::kOnRead);
  EXPECT_EQ(plan->num_staging_tiles, 20 + 4);
  options.ram_bytes = plan->host_bytes - 1;
  const auto with_less = MakeOffloadPlan(inputs, options, {});
  ASSERT_TRUE(with_less.ok()) << with_less.status();
  EXPECT_EQ(with_less->num_staging_tiles, 16);
}

TEST(OffloadPlan, NamesTheLargestTermsOfWhatDoesNotFit) {
  const auto plan = MakeOffloadPlan(ModuleInputs(), OptionsWith(int64_t{90} << 20), {});
  EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(plan.status()), HasSubstr("activations"));
  EXPECT_THAT(MessageOf(plan.status()), HasSubstr("a smaller batch"));
}

TEST(OffloadPlan, ADiskThatIsTooSmallIsNamedUnlessTheStoreIsThereAlready) {
  MachineLimits limits;
  limits.disks[0] = {.folder = "/mnt/small", .free_bytes = 100'000};
  PlanInputs inputs = ModuleInputs();
  const auto plan = MakeOffloadPlan(inputs, OptionsWith(int64_t{256} << 20), limits);
  EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(plan.status()), HasSubstr("/mnt/small"));
  inputs.store_exists = true;
  EXPECT_TRUE(MakeOffloadPlan(inputs, OptionsWith(int64_t{256} << 20), limits).ok());
}

TEST(OffloadPlan, InputsThatNoRunCanHaveAreRefused) {
  const auto code = [](const PlanInputs& inputs, const OffloadOptions& options,
                       const MachineLimits& limits = {}) {
    return ExitCodeOf(MakeOffloadPlan(inputs, options, limits).status());
  };
  const OffloadOptions options = OptionsWith(int64_t{256} << 20);
  PlanInputs inputs = ModuleInputs();
  inputs.chain.num_layers = 4;
  EXPECT_EQ(code(inputs, options), ExitCode::kUsage);
  EXPECT_EQ(code(PlanInputs(), options), ExitCode::kUsage);
  OffloadOptions other = options;
  other.tile_elems = 1000;
  EXPECT_EQ(code(ModuleInputs(), other), ExitCode::kUsage);
  other = options;
  other.buffers = {.num_staging_tiles = 1, .num_block_buffers = 3};
  EXPECT_EQ(code(ModuleInputs(), other), ExitCode::kUsage);
  other = options;
  other.gradients = GradientChoice::kSpeculate;
  other.gradients_tier = TierChoice::kNvme;
  EXPECT_EQ(code(ModuleInputs(), other), ExitCode::kUsage);
  other = options;
  other.nvme = {"/a", "/b"};
  EXPECT_EQ(code(ModuleInputs(), other), ExitCode::kUsage);
  inputs = ModuleInputs();
  inputs.inventory.BeginRawLayer("buffers");
  inputs.inventory.AddRaw("count", 8);
  EXPECT_TRUE(MakeOffloadPlan(inputs, options, {}).ok());
  other = options;
  other.delay_update_from = 2;
  EXPECT_EQ(code(inputs, other), ExitCode::kUsage);
  other.commit_every = 4;
  EXPECT_TRUE(MakeOffloadPlan(inputs, other, {}).ok());
  for (const auto change : std::initializer_list<void (*)(OffloadOptions&)>{
           [](OffloadOptions& o) { o.delay_update_from = 1; },
           [](OffloadOptions& o) { o.commit_every = 1; },
           [](OffloadOptions& o) { o.durability = Durability::kNone; },
           [](OffloadOptions& o) { o.gradients = GradientChoice::kSpeculate; }}) {
    OffloadOptions wrong = other;
    change(wrong);
    EXPECT_EQ(code(inputs, wrong), ExitCode::kUsage);
  }
  inputs.inventory.BeginLayer("behind");
  inputs.inventory.Add("weight", {8, 8}, 0, true);
  EXPECT_EQ(code(inputs, options), ExitCode::kUsage);
  other = options;
  other.lr = 0;
  other.param_groups = {{.match = "layer1.*", .lr = 1e-3}};
  EXPECT_EQ(code(ModuleInputs(), other), ExitCode::kUsage);
}

TEST(OffloadPlan, AGroupThatMatchesNoTensorIsRefused) {
  OffloadOptions options = OptionsWith(int64_t{256} << 20);
  options.param_groups = {{.match = "layer9.*", .lr = 1e-3}};
  const auto plan = MakeOffloadPlan(ModuleInputs(), options, {});
  EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(plan.status()), HasSubstr("layer9.*"));
}

}  // namespace
}  // namespace forebay
