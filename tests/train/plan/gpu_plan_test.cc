#include "forebay/train/plan/gpu_plan.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/device_state.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/machine.h"
#include "forebay/train/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

MachineLimits MachineWithGpu(int64_t free_bytes) {
  MachineLimits limits;
  limits.available_memory_bytes = 64 * kGibibyte;
  limits.num_cores = 16;
  limits.gpu = {.name = "a card", .free_bytes = free_bytes};
  return limits;
}

MachineLimits MachineWithoutGpu() {
  MachineLimits limits = MachineWithGpu(0);
  limits.gpu = {.why_none = "there is no driver"};
  return limits;
}

TrainOptions OnGpu() {
  TrainOptions options;
  options.out = "out";
  options.batch = 4;
  options.seq = 1024;
  options.device = ComputeDevice::kCuda;
  return options;
}

TEST(GpuPlan, ThirteenBillionParametersFitACardOf24GbAnd64GbOfRam) {
  const auto plan = MakePlan(Llama13B(), OnGpu(), MachineWithGpu(23 * kGibibyte));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->on_gpu());
  EXPECT_EQ(plan->gpu.device, "a card");
  int64_t sum = 0, state = 0;
  for (const GpuTerm& term : plan->gpu.terms) {
    sum += term.bytes;
    if (term.name == "optimizer state") state = term.bytes;
  }
  EXPECT_EQ(sum, plan->gpu.bytes);
  EXPECT_LT(sum - state, 10 * kGibibyte);
  for (const PlanTerm& term : plan->terms) {
    EXPECT_NE(term.name, "activation checkpoints");
    EXPECT_NE(term.name, "decoder workspace");
  }
  const std::string text = FormatPlan(*plan, Llama13B(), OnGpu());
  EXPECT_THAT(text, HasSubstr("a card"));
  EXPECT_THAT(text, HasSubstr("total on the GPU"));
  EXPECT_EQ(ToJson(*plan)["gpu"]["bytes"], plan->gpu.bytes);
}

TEST(GpuPlan, WhatIsLeftOfTheCardHasStateThatFindsNoRoomInRam) {
  TrainOptions options = OnGpu();
  const MachineLimits limits = MachineWithGpu(23 * kGibibyte);
  const auto plan = MakePlan(Llama13B(), options, limits);
  options.state_tier = TierChoice::kNvme;
  const auto without = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(plan.ok() && without.ok()) << plan.status() << without.status();
  const int64_t state_bytes = plan->placement.device_state_bytes;
  EXPECT_GT(state_bytes, 10 * kGibibyte);
  EXPECT_EQ(plan->gpu.bytes - without->gpu.bytes,
            state_bytes + DeviceState::WorkBytes(plan->tiles, options.grad_dtype));
  EXPECT_LE(plan->gpu.bytes, plan->gpu.budget_bytes);
  // Nearly a tile more would not fit.
  EXPECT_GT(plan->gpu.bytes + 2 * plan->tiles.max_state_bytes(), plan->gpu.budget_bytes);
  EXPECT_EQ(ToJson(*plan)["placement"]["gpu_state_bytes"], state_bytes);

  // Little room is not worth the buffers in RAM.
  options.state_tier = TierChoice::kAuto;
  options.gpu_mem_bytes = without->gpu.bytes + (int64_t{300} << 20);
  EXPECT_FALSE(MakePlan(Llama13B(), options, limits)->placement.AnyOnDevice());
  options.gpu_mem_bytes = without->gpu.bytes + (int64_t{600} << 20);
  EXPECT_TRUE(MakePlan(Llama13B(), options, limits)->placement.AnyOnDevice());
  options.gpu_mem_bytes = 0;

  options.state_tier = TierChoice::kDevice;
  const absl::Status refused = MakePlan(Llama13B(), options, limits).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("Raise --gpu_mem by"));
  const auto large = MakePlan(Llama13B(), options, MachineWithGpu(200 * kGibibyte));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->placement.device_state_bytes, large->tiles.state_area_bytes());
}

TEST(GpuPlan, ARunThatFitsRamFitsItWithoutStateOnTheCard) {
  TrainOptions options = OnGpu();
  options.state_tier = TierChoice::kNvme;
  options.ram_bytes = int64_t{1} << 30;
  const MachineLimits limits = MachineWithGpu(23 * kGibibyte);
  const std::string message = MessageOf(MakePlan(Llama13B(), options, limits).status());
  const size_t least = message.find("works is --ram=");
  ASSERT_NE(least, std::string::npos) << message;
  options.ram_bytes = std::stoll(message.substr(least + 15)) << 20;
  options.state_tier = TierChoice::kAuto;
  const auto plan = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->placement.AnyOnDevice());
}

TEST(GpuPlan, OnlyStateCanBeOnACard) {
  TrainOptions options = OnGpu();
  options.weights_tier = TierChoice::kDevice;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(200 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("weights_tier"));
}

TEST(GpuPlan, OnTheCpuNoStateCanBeOnAGpu) {
  TrainOptions options = OnGpu();
  options.device = ComputeDevice::kCpu;
  options.state_tier = TierChoice::kDevice;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(200 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("state_tier=gpu"));
}

TEST(GpuPlan, ActivationsThatDoNotFitOnTheCardWaitInRam) {
  TrainOptions options = OnGpu();
  options.accum = 16;
  MachineLimits limits = MachineWithGpu(23 * kGibibyte);
  const auto plan = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tokens_per_step, 65536);
  const int64_t activation_bytes = 65536 * 5120 * 2;
  EXPECT_LE(plan->gpu.bytes, plan->gpu.budget_bytes);
  EXPECT_GT(plan->gpu.bytes + activation_bytes, plan->gpu.budget_bytes);
  const int in_ram = plan->gpu.num_spilled_activations;
  EXPECT_GT(in_ram, 10);
  const std::string name = fmt::format("activations of {} layers, of the GPU", in_ram);
  const auto term = std::ranges::find(plan->terms, name, &PlanTerm::name);
  ASSERT_NE(term, plan->terms.end());
  EXPECT_EQ(term->host_bytes, in_ram * activation_bytes);
  EXPECT_EQ(std::ranges::count(plan->schedule.operations, OperationKind::kSpill, &Operation::kind),
            in_ram);

  limits.gpu.free_bytes = 90 * kGibibyte;
  const auto large = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->gpu.num_spilled_activations, 0);
}

TEST(GpuPlan, OfSegmentsTheInputsAloneAreKept) {
  TrainOptions options = OnGpu();
  options.accum = 16;
  options.number_checkpoints = 20;  // of 2 blocks: their inputs, both layers' of the last, and one
  options.state_tier = TierChoice::kNvme;
  const int64_t activation_bytes = 65536 * 5120 * 2;
  const auto large = MakePlan(Llama13B(), options, MachineWithGpu(90 * kGibibyte));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->recompute.segment_blocks, 2);
  EXPECT_EQ(large->gpu.segment_layers, 2);
  EXPECT_EQ(large->gpu.num_spilled_activations, 0);
  const auto checkpoints = [](const Plan& plan) {
    return std::ranges::find(plan.gpu.terms, "activation checkpoints", &GpuTerm::name)->bytes;
  };
  // Beside them one layer's gradients of activations.
  EXPECT_EQ(checkpoints(*large), (22 + 1) * activation_bytes);
  EXPECT_THAT(FormatPlan(*large, Llama13B(), options), HasSubstr("--set=number_checkpoints=20"));

  options.gpu_mem_bytes = large->gpu.bytes - 5 * activation_bytes;
  const auto small = MakePlan(Llama13B(), options, MachineWithGpu(90 * kGibibyte));
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->gpu.num_spilled_activations, 5);
  EXPECT_EQ(checkpoints(*small), (22 + 1 - 5) * activation_bytes);
  const auto in_ram =
      std::ranges::find(small->terms, "activations of 5 layers, of the GPU", &PlanTerm::name);
  ASSERT_NE(in_ram, small->terms.end());
  EXPECT_EQ(in_ram->host_bytes, 5 * activation_bytes);
  EXPECT_EQ(in_ram->shrink_with, "--batch, --seq, --accum or a larger --gpu_mem");
  EXPECT_EQ(std::ranges::count(small->schedule.operations, OperationKind::kSpill, &Operation::kind),
            5);
  EXPECT_EQ(
      std::ranges::count(small->schedule.operations, OperationKind::kForward, &Operation::kind),
      1 + 40 + 19);
}

// In parts the card has enough, and what lacks then is said.
TEST(GpuPlan, MemoryOfTheHostThatLacksIsNamedWhereTheCardHasEnoughInParts) {
  DecoderConfig model = Llama13B();
  model.num_layers = 8;
  model.vocab_size = 256000;
  TrainOptions options = OnGpu();
  options.gpu_mem_bytes = 9 * kGibibyte;
  // More of it lacks than the card would need for whole ones.
  options.state_tier = TierChoice::kHost;
  options.ram_bytes = 20 * kGibibyte;
  const absl::Status refused = MakePlan(model, options, MachineWithGpu(60 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("--ram="));
}

TEST(GpuPlan, SegmentsOfManyLayersNeedABufferForEach) {
  TrainOptions options = OnGpu();
  options.accum = 16;
  options.number_checkpoints = 2;
  options.gpu_mem_bytes = 12 * kGibibyte;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("a larger --set=number_checkpoints"));
  options.number_checkpoints = 8;
  EXPECT_TRUE(MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).ok());
}

TEST(GpuPlan, InputsOfSegmentsDoNotWaitOnNvme) {
  TrainOptions options = OnGpu();
  options.number_checkpoints = 8;
  options.activations_tier = ActivationsTier::kNvme;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("--set=activations_tier=ram"));
}

// The plan with the least memory on the card that is enough.
Plan LeastPlan(const DecoderConfig& model, TrainOptions options) {
  int64_t too_small = 0, enough = 64 * kGibibyte;
  while (enough - too_small > 1 << 20) {
    options.gpu_mem_bytes = (too_small + enough) / 2;
    (MakePlan(model, options, MachineWithGpu(64 * kGibibyte)).ok() ? enough : too_small) =
        options.gpu_mem_bytes;
  }
  options.gpu_mem_bytes = enough;
  return *MakePlan(model, options, MachineWithGpu(64 * kGibibyte));
}
int64_t BytesOf(const GpuPlan& plan, std::string_view term) {
  const auto found = std::ranges::find(plan.terms, term, &GpuTerm::name);
  return found == plan.terms.end() ? 0 : found->bytes;
}

TEST(GpuPlan, WhereTheCardIsSmallBlocksShareTheMemoryOfTheHeadsGradient) {
  DecoderConfig model = Llama13B();
  model.vocab_size = 128256;
  const Inventory inventory = BuildInventory(model);
  const int64_t head = inventory.layers().back().num_elems, block = inventory.layers()[1].num_elems;
  ASSERT_GT(head, 2 * block);
  TrainOptions options = OnGpu();
  options.state_tier = TierChoice::kNvme;  // else it takes what is left on the card
  const auto roomy = MakePlan(model, options, MachineWithGpu(40 * kGibibyte));
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_FALSE(roomy->gpu.shares_gradients);
  EXPECT_EQ(BytesOf(roomy->gpu, "gradients of layers (fp32)"), 4 * (head + block));
  // A layer that is far larger than a block has one place for weights, and none for gradients that
  // come to RAM.
  EXPECT_EQ(BytesOf(roomy->gpu, "weights of 3 layers"), 2 * (head + 2 * block));
  EXPECT_LT(BytesOf(roomy->gpu, "rounded gradient of a layer"), 2 * block + block / 32);
  // Less than with every activation in RAM.
  const int64_t activation_bytes =
      options.batch * options.accum * options.seq * model.hidden_size * 2;
  options.gpu_mem_bytes = roomy->gpu.bytes - model.num_layers * activation_bytes;
  const auto smaller = MakePlan(model, options, MachineWithGpu(40 * kGibibyte));
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_TRUE(smaller->gpu.shares_gradients);
  EXPECT_EQ(BytesOf(smaller->gpu, "gradients of layers (fp32)"), 4 * head);
  // In parts they take no more than a block's, beside the norm's.
  const Plan least = LeastPlan(model, OnGpu());
  EXPECT_TRUE(least.gpu.vocabulary_in_parts);
  EXPECT_EQ(BytesOf(least.gpu, "gradients of layers (fp32)"), 4 * (block + 6144));

  model.tied_embeddings = true;  // those of blocks are made while the embedding's are
  options.gpu_mem_bytes = 0;
  const auto tied = MakePlan(model, options, MachineWithGpu(40 * kGibibyte));
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_FALSE(tied->gpu.shares_gradients || tied->gpu.vocabulary_in_parts);
  options.gpu_mem_bytes = tied->gpu.bytes - model.num_layers * activation_bytes;
  const auto smaller_tied = MakePlan(model, options, MachineWithGpu(40 * kGibibyte));
  ASSERT_TRUE(smaller_tied.ok()) << smaller_tied.status();
  EXPECT_FALSE(smaller_tied->gpu.shares_gradients);
  EXPECT_TRUE(smaller_tied->gpu.vocabulary_in_parts);
}

// The vocabulary is most of the memory there, and nothing else helps.
TEST(GpuPlan, GradientsOfALargeVocabularyAreMadeInPartsWhereTheCardIsSmall) {
  DecoderConfig model = Llama13B();
  model.num_layers = 8;
  model.vocab_size = 256000;
  TrainOptions options = OnGpu();
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied);
    model.tied_embeddings = tied;
    const int64_t whole_gradient = model.vocab_size * model.hidden_size * 4;
    options.gpu_mem_bytes = 0;
    const auto roomy = MakePlan(model, options, MachineWithGpu(60 * kGibibyte));
    ASSERT_TRUE(roomy.ok()) << roomy.status();
    EXPECT_FALSE(roomy->recompute.vocabulary_in_parts);
    options.gpu_mem_bytes = 9 * kGibibyte;
    const auto small = MakePlan(model, options, MachineWithGpu(60 * kGibibyte));
    ASSERT_TRUE(small.ok()) << small.status();
    EXPECT_TRUE(small->recompute.vocabulary_in_parts);
    EXPECT_TRUE(small->gpu.vocabulary_in_parts);
    EXPECT_FALSE(small->gpu.shares_gradients);
    EXPECT_LE(small->gpu.bytes, 9 * kGibibyte);
    EXPECT_THAT(FormatPlan(*small, model, options), HasSubstr("gradients are made in parts"));
    // Sums over GPUs, and over ranks, are of whole layers.
    options.gpu_mem_bytes = 40 * kGibibyte;
    options.data_parallel = 2;
    const auto of_parts = MakePlan(model, options, MachineWithGpu(60 * kGibibyte));
    ASSERT_TRUE(of_parts.ok()) << of_parts.status();
    EXPECT_GE(LeastPlan(model, options).gpu.bytes, whole_gradient);
    EXPECT_FALSE(LeastPlan(model, options).recompute.vocabulary_in_parts);
    options.data_parallel = 1;
    options.num_ranks = 2;
    EXPECT_FALSE(LeastPlan(model, options).recompute.vocabulary_in_parts);
    options.num_ranks = 1;
  }
}

TEST(GpuPlan, EightBillionParametersWithALargeVocabularyFitACardOf8Gb) {
  DecoderConfig model = Llama13B();  // of Llama-3 8B's shape
  model.hidden_size = 4096;
  model.intermediate_size = 14336;
  model.num_layers = 32;
  model.num_heads = 32;
  model.num_kv_heads = 8;
  model.vocab_size = 128256;
  TrainOptions options = OnGpu();
  options.batch = 2;
  options.accum = 8;
  const MachineLimits limits = LimitsOf(*ReadMachine("4060-32g"), options);
  const auto plan = MakePlan(model, options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->gpu.bytes, plan->gpu.budget_bytes);
  EXPECT_EQ(plan->forecast.has_value(), true);
}

TEST(GpuPlan, TooLittleMemoryIsRefusedWithTheLeastThatIsEnough) {
  TrainOptions options = OnGpu();
  options.gpu_mem_bytes = 4 * kGibibyte;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  const std::string message = MessageOf(refused);
  EXPECT_THAT(message, HasSubstr("activation checkpoints"));
  EXPECT_THAT(message, HasSubstr("--batch"));
  const int64_t mebibytes = std::stoll(message.substr(message.find("--gpu_mem=") + 10));
  options.gpu_mem_bytes = mebibytes << 20;
  EXPECT_TRUE(MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).ok());
  options.gpu_mem_bytes = (mebibytes - 1) << 20;
  EXPECT_FALSE(MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).ok());
}

TEST(GpuPlan, ACardWithLessThanWasAskedForIsRefused) {
  TrainOptions options = OnGpu();
  options.gpu_mem_bytes = 30 * kGibibyte;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("free on a card"));
}

TEST(GpuPlan, ACardWithoutBf16IsForFp16) {
  MachineLimits limits = MachineWithGpu(23 * kGibibyte);
  limits.gpu.has_bf16 = false;
  TrainOptions options = OnGpu();
  const absl::Status refused = MakePlan(Llama13B(), options, limits).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(refused), HasSubstr("--precision=fp16"));
  options.precision = cpu::Precision::kFp16;
  EXPECT_TRUE(MakePlan(Llama13B(), options, limits).ok());
}

TEST(GpuPlan, WithoutAGpuAutoIsTheCpuAndCudaAnError) {
  TrainOptions options = OnGpu();
  const absl::Status refused = MakePlan(Llama13B(), options, MachineWithoutGpu()).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(refused), HasSubstr("there is no driver"));
  options.device = ComputeDevice::kAuto;
  const auto on_cpu = MakePlan(Llama13B(), options, MachineWithoutGpu());
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  EXPECT_FALSE(on_cpu->on_gpu());
  EXPECT_EQ(on_cpu->why_no_gpu, "there is no driver");
  const auto on_gpu = MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte));
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_TRUE(on_gpu->on_gpu());
}

TEST(GpuPlan, APlanForACardThatIsElsewhereNeedsItsMemory) {
  TrainOptions options = OnGpu();
  options.gpu_mem_bytes = 22 * kGibibyte;
  const auto plan = MakePlan(Llama13B(), options, MachineWithoutGpu());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->gpu.budget_bytes, 22 * kGibibyte);
}

TEST(GpuPlan, ActivationsOnNvmeLeaveThreeBuffersInRam) {
  TrainOptions options = OnGpu();
  options.accum = 16;
  const MachineLimits limits = MachineWithGpu(23 * kGibibyte);
  const auto in_ram = MakePlan(Llama13B(), options, limits);
  options.activations_tier = ActivationsTier::kNvme;
  const auto on_disk = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(in_ram.ok() && on_disk.ok()) << in_ram.status() << on_disk.status();
  const int64_t activation_bytes = 65536 * 5120 * 2;
  const int num_spilled = in_ram->gpu.num_spilled_activations;
  EXPECT_EQ(on_disk->gpu.num_spilled_activations, num_spilled);
  EXPECT_EQ(ToJson(*in_ram)["gpu"]["activations_in_ram"], num_spilled);
  EXPECT_EQ(ToJson(*in_ram)["gpu"]["activations_on_nvme"], 0);
  EXPECT_EQ(ToJson(*on_disk)["gpu"]["activations_in_ram"], 0);
  EXPECT_EQ(ToJson(*on_disk)["gpu"]["activations_on_nvme"], num_spilled);
  const auto term = std::ranges::find(on_disk->terms, "activation checkpoints", &PlanTerm::name);
  ASSERT_NE(term, on_disk->terms.end());
  EXPECT_EQ(term->host_bytes, 3 * activation_bytes);
  EXPECT_EQ(term->nvme_bytes, num_spilled * activation_bytes);
  for (const PlanTerm& each : on_disk->terms) EXPECT_FALSE(each.name.starts_with("activations of"));
  for (const OperationKind kind : {OperationKind::kSpill, OperationKind::kFetch}) {
    EXPECT_EQ(std::ranges::count(on_disk->schedule.operations, kind, &Operation::kind),
              num_spilled);
  }
}

TEST(GpuPlan, ActivationsHaveTheDTypeOfPrecision) {
  TrainOptions options = OnGpu();
  const auto usual = MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte));
  options.activations_dtype = DType::kBF16;
  const auto plan = MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte));
  ASSERT_TRUE(usual.ok() && plan.ok()) << usual.status() << plan.status();
  EXPECT_EQ(ToJson(*plan), ToJson(*usual));
  options.precision = cpu::Precision::kFp16;
  options.layout = Layout::kFp16;
  const absl::Status refused =
      MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte)).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused), HasSubstr("--set=activations_dtype=bf16"));
  EXPECT_THAT(MessageOf(refused), HasSubstr("--precision=fp16"));
}

TEST(GpuPlan, FewActivationsOnNvmeHaveABufferEach) {
  TrainOptions options = OnGpu();
  options.accum = 16;
  options.state_tier = TierChoice::kNvme;  // of which some would take what the GPU has left
  const MachineLimits limits = MachineWithGpu(90 * kGibibyte);
  const auto whole = MakePlan(Llama13B(), options, limits);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int64_t activation_bytes = 65536 * 5120 * 2;
  for (const int num_spilled : {1, 2, 3, 5}) {
    options.gpu_mem_bytes = whole->gpu.bytes - num_spilled * activation_bytes;
    options.activations_tier = ActivationsTier::kRam;
    const auto in_ram = MakePlan(Llama13B(), options, limits);
    options.activations_tier = ActivationsTier::kNvme;
    const auto on_disk = MakePlan(Llama13B(), options, limits);
    ASSERT_TRUE(in_ram.ok() && on_disk.ok()) << in_ram.status() << on_disk.status();
    ASSERT_EQ(on_disk->gpu.num_spilled_activations, num_spilled);
    const auto buffers =
        std::ranges::find(on_disk->terms, "activation checkpoints", &PlanTerm::name);
    ASSERT_NE(buffers, on_disk->terms.end());
    EXPECT_EQ(buffers->host_bytes, std::min(3, num_spilled) * activation_bytes);
    const std::string name = fmt::format("activations of {} layers, of the GPU", num_spilled);
    const auto waiting = std::ranges::find(in_ram->terms, name, &PlanTerm::name);
    ASSERT_NE(waiting, in_ram->terms.end());
    EXPECT_EQ(waiting->shrink_with.find("--set=activations_tier=nvme") != std::string::npos,
              num_spilled > 3);
  }
}

TEST(GpuPlan, WhereAllActivationsFitOnTheCardNoneAreOnNvme) {
  TrainOptions options = OnGpu();
  options.activations_tier = ActivationsTier::kNvme;
  const auto plan = MakePlan(Llama13B(), options, MachineWithGpu(23 * kGibibyte));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ToJson(*plan)["gpu"]["activations_on_nvme"], 0);
  EXPECT_EQ(ToJson(*plan)["activation_area_bytes"], 0);
  EXPECT_EQ(std::ranges::count(plan->terms, "activation checkpoints", &PlanTerm::name), 0);
}

}  // namespace
}  // namespace forebay
