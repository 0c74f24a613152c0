#include "forebay/train/plan/forecast.h"

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_flops.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/machine.h"
#include "forebay/train/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST(DecoderFlops, AreTwoForEachParameterAndTokenAndThreeTimesThatBackward) {
  const DecoderConfig config = Llama13B();
  const double params = static_cast<double>(BuildInventory(config).num_params());
  const double embedding = 32000.0 * 5120;
  // With one token in a row, a query sees one key.
  const DecoderFlops flops = FlopsOf(config, /*tokens=*/1000, /*seq=*/1);
  EXPECT_NEAR(flops.forward, 2 * 1000 * (params - embedding), 2e-3 * flops.forward);
  const double head = 2 * 1000 * embedding;
  // All is computed again but for each block's last product.
  const double last_products = 2 * 1000 * 40 * 13824.0 * 5120;
  EXPECT_NEAR(flops.backward, 3 * (flops.forward - head) + 2 * head - last_products, 1);
}

TEST(DecoderFlops, LeaveOutWhatIsNotComputedAgain) {
  const DecoderConfig config = Llama13B();
  const auto backward = [&](BlockRecompute recompute) {
    return FlopsOf(config, 1024, 1024, recompute).backward;
  };
  const double forward = FlopsOf(config, 1024, 1024).forward;
  const double none = backward({Recompute::kAll, 0});
  EXPECT_NEAR(none, 2 * forward, 1e-9 * none);
  // Queries, keys and values, and attention.
  const double attention = backward({Recompute::kAttention, 40}) - none;
  EXPECT_NEAR(attention, 40 * (2.0 * 1024 * 3 * 5120 * 5120 + 2.0 * 2 * 5120 * 1024 * 1025 / 2),
              1e-9 * none);
  const double all = backward({Recompute::kAll, 40}) - none;
  EXPECT_NEAR(all - attention, 40 * (2.0 * 1024 * 5120 * (5120 + 2 * 13824)), 1e-9 * none);
  EXPECT_NEAR(backward({Recompute::kAll, 10}) - none, all / 4, 1e-9 * none);
  // In segments of 4, 3 of each but the last go forward twice.
  const double block = (forward - 2.0 * 1024 * 32000 * 5120) / 40;
  EXPECT_NEAR(backward({.segment_blocks = 4}) - none - all, 9 * 3 * block, 1e-9 * none);
}

TEST(DecoderFlops, CountTheLogitsOfALargeVocabularyAsOftenAsTheyAreComputed) {
  DecoderConfig config = Llama13B();
  const auto backward = [&](bool in_parts, bool on_cpu) {
    return FlopsOf(config, 1024, 1024, {.vocabulary_in_parts = in_parts}, on_cpu).backward;
  };
  EXPECT_EQ(backward(false, true), backward(false, false));
  config.vocab_size = 128256;
  const double head = 2.0 * 1024 * 128256 * 5120, once = backward(false, false);
  EXPECT_NEAR(backward(false, true), once + head, 1e-9 * once);
  EXPECT_NEAR(backward(true, false), once + head, 1e-9 * once);
  EXPECT_NEAR(backward(true, true), once + 2 * head, 1e-9 * once);
}

TEST(DecoderFlops, CountTheKeysThatQueriesSee) {
  DecoderConfig config = Llama13B();
  const auto attention = [&](int64_t seq) {
    return FlopsOf(config, 4096, seq).forward - FlopsOf(config, 4096, 1).forward;
  };
  // 40 layers, scores and values, 5120 wide; one key a query is in both.
  EXPECT_NEAR(attention(4096), 40.0 * 2 * 2 * 5120 * (4096.0 * 4097 / 2 - 4096), 1e8);
  EXPECT_NEAR(attention(1024), 40.0 * 2 * 2 * 5120 * 4 * (1024.0 * 1025 / 2 - 1024), 1e8);
  const double all = attention(4096);
  config.window.assign(40, 1);
  EXPECT_EQ(attention(4096), 0);
  config.window.assign(40, 2048);
  EXPECT_NEAR(attention(4096) / all, 0.75, 1e-3);
}

class ForecastTest : public testing::Test {
 protected:
  ForecastTest() : machine_(*ReadMachine("4090-64g")) {}
  Plan MustPlan() {
    TrainOptions options = options_;
    const MachineLimits limits = LimitsOf(machine_, options);
    auto plan = MakePlan(Llama13B(), options, limits);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  TrainOptions options_ = LargeSteps();
  Machine machine_;
};

TEST_F(ForecastTest, IsEachPassesSlowestPart) {
  const Plan plan = MustPlan();
  ASSERT_TRUE(plan.forecast.has_value());
  const StepForecast& step = *plan.forecast;
  // 8 operations a parameter and token, but 6 for each block's last matrix, and some for attention,
  // at 149 TFLOP/s.
  const double compute_s = step.forward.compute_s + step.backward.compute_s;
  const double last_matrices = 40 * 13824.0 * 5120;
  EXPECT_NEAR(compute_s, (8 * 13.0e9 - 2 * last_matrices) * 65536 / 149e12, 0.05 * compute_s);
  EXPECT_DOUBLE_EQ(step.forward.disk_s + step.backward.disk_s, plan.io_s_per_step);
  // State is read, updated and written in forward.
  EXPECT_GT(step.forward.disk_s, 3 * step.backward.disk_s);
  EXPECT_EQ(step.forward.bound(), Bound::kDisk);
  EXPECT_EQ(step.backward.bound(), Bound::kCompute);
  EXPECT_DOUBLE_EQ(step.step_s, step.forward.disk_s + step.backward.compute_s);
  EXPECT_DOUBLE_EQ(step.bound_s, plan.io_s_per_step);
  EXPECT_EQ(step.bound, Bound::kDisk);
  EXPECT_DOUBLE_EQ(step.tokens_per_s, 65536 / step.step_s);
  const std::string text = FormatPlan(plan, Llama13B(), options_);
  EXPECT_THAT(text, HasSubstr("forecast   "));
  EXPECT_EQ(ToJson(plan)["forecast"]["backward"]["bound"], "compute");
}

TEST_F(ForecastTest, UpdatesInTheBackwardPassMoveTheirDiskTimeThere) {
  options_.gradients = GradientChoice::kSpeculate;
  options_.speculate_layers = 42;  // all
  const Plan plan = MustPlan();
  const StepForecast& step = *plan.forecast;
  EXPECT_EQ(step.forward.bound(), Bound::kCompute);
  EXPECT_EQ(step.backward.bound(), Bound::kDisk);
  EXPECT_GT(step.backward.memory_s, step.forward.memory_s);
  // The first tiles are read while the forward pass leaves the disk idle.
  EXPECT_GT(step.forward.disk_s, plan.forward_io_s);
  EXPECT_LE(step.forward.disk_s, step.forward.compute_s);
  EXPECT_NEAR(step.forward.disk_s + step.backward.disk_s, plan.io_s_per_step,
              1e-9 * plan.io_s_per_step);
}

TEST_F(ForecastTest, DelayedUpdatesAreInTheBackwardPass) {
  options_.delay_update_from = 2;
  options_.commit_every = 10;
  const Plan plan = MustPlan();
  const StepForecast& step = *plan.forecast;
  EXPECT_GT(plan.backward_io_s, plan.forward_io_s);
  EXPECT_GT(step.backward.memory_s, step.forward.memory_s);
}

TEST_F(ForecastTest, ASlowBusOrMemoryBindsInstead) {
  machine_.disk_read_bytes_per_s = machine_.disk_write_bytes_per_s = 1e12;
  machine_.bus_bytes_per_s = 1e9;
  // State on the GPU has weights and gradients cross the bus for its update.
  const Plan with_state = MustPlan();
  options_.state_tier = TierChoice::kNvme;
  StepForecast step = *MustPlan().forecast;
  const double elems = static_cast<double>(with_state.placement.device_state_bytes) / 10;
  EXPECT_GT(elems, 1e6);
  EXPECT_NEAR(with_state.forecast->forward.bus_s, step.forward.bus_s + elems * 4 / 1e9, 1e-3);
  EXPECT_EQ(step.forward.bound(), Bound::kBus);
  // All weights in bf16; those of the blocks again, and activations of some layers.
  EXPECT_NEAR(step.forward.bus_s, 26.03, 0.01);
  const double activation_s = 65536 * 5120 * 2 / 1e9;
  EXPECT_NEAR(step.backward.bus_s,
              26.03 - 2 * 0.3277 + MustPlan().gpu.num_spilled_activations * activation_s, 0.01);
  machine_.bus_bytes_per_s = 1e12;
  machine_.memory_bytes_per_s = 1e9;
  step = *MustPlan().forecast;
  EXPECT_EQ(step.bound, Bound::kMemory);
}

// Whole layers go to each rank's GPU, whatever its store has of them, and gradients come in fp32.
TEST_F(ForecastTest, RanksHaveWholeLayersCrossTheBus) {
  options_.state_tier = TierChoice::kNvme;
  const StepForecast alone = *MustPlan().forecast;
  options_.num_ranks = 8;
  for (const int stage : {0, 3}) {
    options_.zero_stage = stage;
    const StepForecast of_rank = *MustPlan().forecast;
    EXPECT_EQ(of_rank.forward.bus_s, alone.forward.bus_s);
    const double gradients =
        static_cast<double>(BuildInventory(Llama13B()).num_padded_elems()) * sizeof(float);
    EXPECT_NEAR(of_rank.backward.bus_s, gradients / machine_.bus_bytes_per_s, 1e-9);
  }
}

TEST_F(ForecastTest, OnACpuUpdatesAndChecksumsTakeTimeFromTheComputation) {
  options_.device = ComputeDevice::kCpu;
  options_.batch = options_.accum = 1;
  machine_.cpu_matmul_flops_per_s = 1e12;
  const Plan plan = MustPlan();
  const StepForecast& step = *plan.forecast;
  const double flops_s = FlopsOf(Llama13B(), 1024, 1024).forward / 1e12;
  const auto moved = static_cast<double>(plan.read_bytes_per_step + plan.write_bytes_per_step);
  const double checksums_s = 3 * moved / machine_.memory_bytes_per_s;
  EXPECT_NEAR(
      step.forward.compute_s,
      flops_s + step.forward.memory_s + checksums_s * plan.forward_io_s / plan.io_s_per_step,
      1e-9 * step.forward.compute_s);
  EXPECT_EQ(step.forward.bus_s, 0);
}

// Tiles of 13B are a small part of it, and the machine has memory for 64 of them or not.
TEST_F(ForecastTest, DeepStagingMovesTheDisksTimeIntoTheBackwardPass) {
  options_.device = ComputeDevice::kCpu;
  options_.weights_tier = options_.state_tier = TierChoice::kNvme;
  options_.gradients = GradientChoice::kHold;
  options_.recompute = Recompute::kAll;
  options_.batch = options_.accum = 1;
  options_.ram_bytes = int64_t{48} << 30;
  machine_.cpu_matmul_flops_per_s = 1e12;
  const Plan deep = MustPlan();
  ASSERT_EQ(deep.num_staging_tiles, 64);
  const StepForecast& step = *deep.forecast;
  const double tile_bytes = 10.0 * (1 << 20);
  const double moved_s = 2 * 60 * tile_bytes * deep.io_s_per_step /
                         static_cast<double>(deep.read_bytes_per_step + deep.write_bytes_per_step);
  EXPECT_NEAR(deep.forward_io_s - step.forward.disk_s, moved_s, 0.1 * moved_s);
  EXPECT_NEAR(step.backward.disk_s - deep.backward_io_s, moved_s, 0.1 * moved_s);
  EXPECT_NEAR(step.forward.disk_s + step.backward.disk_s, deep.io_s_per_step,
              1e-9 * deep.io_s_per_step);
}

TEST_F(ForecastTest, OnACpuTheLongerPartHidesTheShorterInPart) {
  options_.device = ComputeDevice::kCpu;
  options_.batch = options_.accum = 1;
  for (const double flops_per_s : {1e11, 1e12, 1e14}) {
    machine_.cpu_matmul_flops_per_s = flops_per_s;
    const StepForecast step = *MustPlan().forecast;
    for (const PassForecast& pass : {step.forward, step.backward}) {
      const auto [shorter, longer] = std::minmax(pass.compute_s, pass.disk_s);
      EXPECT_GE(pass.Seconds(), longer + 0.4 * shorter);
      EXPECT_LE(pass.Seconds(), longer + 0.5 * shorter);
    }
  }
  machine_ = *ReadMachine("4090-64g");
  options_ = LargeSteps();
  EXPECT_EQ(MustPlan().forecast->forward.not_hidden_s, 0) << "a GPU has cores of its own";
}

// The update of a layer goes on while those before it compute: of few layers much is left behind.
TEST_F(ForecastTest, OnACpuUpdatesThatAreAppliedAsGradientsComeGoOnBehindTheLast) {
  options_.device = ComputeDevice::kCpu;
  options_.weights_tier = options_.state_tier = TierChoice::kNvme;
  options_.gradients = GradientChoice::kSpeculate;
  options_.recompute = Recompute::kAll;
  options_.batch = options_.accum = 1;
  machine_.cpu_matmul_flops_per_s = 2e12;
  options_.ram_bytes = 24 * kGibibyte;
  const auto not_hidden_share = [&](int num_layers) {
    DecoderConfig model = Llama13B();
    model.num_layers = num_layers;
    options_.speculate_layers = num_layers + 2;
    const auto plan = MakePlan(model, options_, LimitsOf(machine_, options_));
    FOREBAY_CHECK(plan.ok());
    const PassForecast& pass = plan->forecast->backward;
    return pass.not_hidden_s / std::min(pass.compute_s, pass.disk_s);
  };
  const double deep = not_hidden_share(40);
  EXPECT_LT(deep, 0.3);
  EXPECT_GT(not_hidden_share(2), deep + 0.1);
}

// Half a millisecond for each.
TEST_F(ForecastTest, OnACpuLayersThatComeFromTheDiskMakeItWait) {
  options_.device = ComputeDevice::kCpu;
  options_.batch = options_.accum = 1;
  options_.recompute = Recompute::kAll;
  options_.weights_tier = TierChoice::kNvme;
  machine_.cpu_matmul_flops_per_s = 1e16;  // nothing to hide
  const Plan plan = MustPlan();
  const PassForecast& pass = plan.forecast->forward;
  const double of_shorter = pass.not_hidden_s - 42 * 0.5e-3;
  EXPECT_GT(of_shorter, 0);
  EXPECT_LE(of_shorter, 0.45 * std::min(pass.compute_s, pass.disk_s) * (1 + 1e-9));
}

TEST_F(ForecastTest, WithoutASpeedThereIsNone) {
  options_.device = ComputeDevice::kCpu;
  options_.batch = options_.accum = 1;
  EXPECT_FALSE(MustPlan().forecast.has_value());  // nobody said how fast that CPU is
  EXPECT_TRUE(ToJson(MustPlan())["forecast"].is_null());
}

// ---- The machine

std::string ErrorOf(const std::string& text) {
  return MessageOf(ParseMachine(text, "box.json").status());
}

constexpr char kBox[] = R"({"name": "box", "ram_bytes": 6e10, "num_cores": 8,
    "memory_bytes_per_s": 5e10, "cpu_matmul_flops_per_s": 1e12,
    "gpu": {"name": "card", "memory_bytes": 2e10, "matmul_flops_per_s": 1e14,
            "bus_bytes_per_s": 2e10},
    "disk": {"read_bytes_per_s": 3e9, "write_bytes_per_s": 2e9, "free_bytes": 1e12}})";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Machine, AFileSaysWhatItHas) {
  const auto machine = ParseMachine(kBox, "box.json");
  ASSERT_TRUE(machine.ok()) << machine.status();
  TrainOptions options;
  options.nvme = {"/a", "/b"};
  MachineLimits limits = LimitsOf(*machine, options);
  EXPECT_EQ(limits.available_memory_bytes, 60'000'000'000);
  EXPECT_EQ(limits.num_cores, 8);
  ASSERT_EQ(limits.disks.size(), 2u);
  EXPECT_NE(limits.disks[0].file_system, limits.disks[1].file_system);
  EXPECT_EQ(limits.out_file_system, limits.disks[0].file_system);
  EXPECT_EQ(limits.out_free_bytes, 1'000'000'000'000);
  EXPECT_EQ(limits.speeds.matmul_flops_per_s, 1e12);
  EXPECT_EQ(options.rated_tbw, TrainOptions().rated_tbw);
  options.device = ComputeDevice::kAuto;
  limits = LimitsOf(*machine, options);
  EXPECT_EQ(limits.speeds.matmul_flops_per_s, 1e14);
  EXPECT_EQ(limits.gpu.name, "card");
}

TEST(Machine, ItsDiskHasToHaveRoomForTheExportToo) {
  Machine machine = *ReadMachine("4090-64g");
  TrainOptions options = LargeSteps();
  const auto plan = [&] { return MakePlan(Llama13B(), options, LimitsOf(machine, options)); };
  machine.disk_free_bytes = plan()->nvme_bytes;
  EXPECT_TRUE(plan().ok());
  options.durability = Durability::kStep;  // else one copy is what fits
  machine.disk_free_bytes -= 1;
  EXPECT_THAT(MessageOf(plan().status()), HasSubstr("the swap area and the exported model need"));
  machine.disk_free_bytes = 0;
  EXPECT_EQ(ExitCodeOf(plan().status()), ExitCode::kDoesNotFit);
}

TEST(Machine, MoreMemoryThanItHasIsRefusedInItsName) {
  const Machine machine = *ReadMachine("4090-64g");
  TrainOptions options = LargeSteps();
  options.ram_bytes = machine.ram_bytes + 1;
  const absl::Status refused = MakePlan(Llama13B(), options, LimitsOf(machine, options)).status();
  EXPECT_THAT(MessageOf(refused),
              HasSubstr("is more than a process on the machine '4090-64g' can have, 58.0 GiB"));
  options.ram_bytes = machine.ram_bytes;
  const MachineLimits limits = LimitsOf(machine, options);
  Plan plan = *MakePlan(Llama13B(), options, limits);
  FindBetterSettings(Llama13B(), options, limits, plan);
  for (const BetterSetting& setting : plan.better) {
    EXPECT_EQ(setting.text.starts_with("--ram="),
              setting.text.ends_with("which is more memory than there is"));
  }
}

TEST(Machine, WhatIsWrongInItIsNamed) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "6e10", "-1")), HasSubstr("ram_bytes is -1"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "6e10", "\"64GiB\"")), HasSubstr("ram_bytes is \"64GiB\""));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "num_cores", "cores")), HasSubstr("num_cores is missing"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "\"gpu\"", "\"GPU\"")), HasSubstr("unknown key 'GPU'"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "free_bytes", "free")), HasSubstr("disk.free_bytes is miss"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "1e14", "0")), HasSubstr("gpu.matmul_flops_per_s is 0"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "\"box\"", "7")), HasSubstr("name is 7"));
  EXPECT_THAT(ErrorOf(Replaced(kBox, "\"disk\"", "\"disc\"")), HasSubstr("disk is missing"));
}

TEST(Machine, PresetsAreFoundByName) {
  for (const std::string& name : MachinePresets()) {
    const auto machine = ReadMachine(name);
    ASSERT_TRUE(machine.ok());
    EXPECT_EQ(machine->name, name);
  }
  const absl::Status none = ReadMachine("4090").status();
  EXPECT_EQ(ExitCodeOf(none), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(none), HasSubstr("4090-64g, 4090-128g"));
}

}  // namespace
}  // namespace forebay
