#include "forebay/train/plan/choose_settings.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ChooseSettingsTest : public testing::Test {
 protected:
  ChooseSettingsTest() { options_.gradients = GradientChoice::kSpeculate; }
  Plan MustPlan(const DecoderConfig& model, const std::string& machine) {
    TrainOptions options = options_;
    limits_ = LimitsOf(*ReadMachine(machine), options);
    auto plan = MakePlan(model, options, limits_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  static int64_t NumSpeculative(const Plan& plan) {
    return plan.placement.NumUpdated(UpdateTime::kAfterHand);
  }

  TrainOptions options_ = LargeSteps();
  MachineLimits limits_;
};

// Exact moments, with clipping: what a step of 65536 tokens takes on a 4090 and one drive.
TEST_F(ChooseSettingsTest, AStepOf13BIsAtItsBound) {
  const Plan plan = MustPlan(Llama13B(), "4090-64g");
  EXPECT_EQ(options_.clip, 1);
  EXPECT_LE(plan.forecast->step_s, 1.05 * plan.forecast->bound_s);
  EXPECT_GE(plan.forecast->tokens_per_s, 1380);
}

TEST_F(ChooseSettingsTest, AStepOf70BIsAtItsBound) {
  options_.ram_bytes = 120 * kGibibyte;
  const Plan plan = MustPlan(Llama70B(), "4090-128g");
  EXPECT_LE(plan.forecast->step_s, 1.05 * plan.forecast->bound_s);
  EXPECT_GE(plan.forecast->tokens_per_s, 230);
}

// Segments leave to weights what the inputs of 80 layers would take of RAM.
TEST_F(ChooseSettingsTest, AStepOf70BIsInSegments) {
  const Plan plan = MustPlan(Llama70B(), "4090-128g");
  EXPECT_GE(plan.forecast->tokens_per_s, 230);
  EXPECT_GT(plan.recompute.segment_blocks, 1);
  options_.recompute = Recompute::kAll;
  const Plan whole = MustPlan(Llama70B(), "4090-128g");
  EXPECT_EQ(whole.recompute.segment_blocks, 1);
  EXPECT_LT(whole.forecast->tokens_per_s, 230);
  EXPECT_GT(plan.placement.host_weight_bytes, whole.placement.host_weight_bytes + 30 * kGibibyte);
}

TEST_F(ChooseSettingsTest, OnAGpuNoOtherSegmentsAreMuchFaster) {
  int num_in_segments = 0, num_not = 0;
  for (const int gibibytes : {20, 28, 40}) {
    options_.ram_bytes = gibibytes * kGibibyte;
    const Plan plan = MustPlan(Llama13B(), "4090-64g");
    (plan.recompute.segment_blocks > 1 ? num_in_segments : num_not) += 1;
    double least_s = plan.forecast->step_s;
    for (const int64_t segments : {40, 20, 14, 10, 7}) {
      TrainOptions options = options_;
      options.number_checkpoints = segments;
      const absl::StatusOr<Plan> other = MakePlan(Llama13B(), options, limits_);
      if (other.ok()) least_s = std::min(least_s, other->forecast->step_s);
    }
    EXPECT_LE(plan.forecast->step_s, 1.021 * least_s) << gibibytes;
  }
  EXPECT_GT(num_in_segments, 0);
  EXPECT_GT(num_not, 0);
}

TEST_F(ChooseSettingsTest, WhoeverWantsNoSegmentsIsToldWhatTheyWouldGain) {
  options_.ram_bytes = 20 * kGibibyte;
  const Plan plan = MustPlan(Llama13B(), "4090-64g");
  EXPECT_GT(plan.recompute.segment_blocks, 1);
  options_.recompute = Recompute::kAll;
  Plan whole = MustPlan(Llama13B(), "4090-64g");
  EXPECT_EQ(whole.recompute.segment_blocks, 1);
  FindBetterSettings(Llama13B(), options_, limits_, whole);
  const auto better = std::ranges::find(whole.better, "--recompute=auto", &BetterSetting::text);
  ASSERT_NE(better, whole.better.end());
  EXPECT_DOUBLE_EQ(better->step_s, plan.forecast->step_s);
}

TEST_F(ChooseSettingsTest, SegmentsThatAreGivenAreTakenAndTheChoiceIsNamedIfItIsBetter) {
  options_.number_checkpoints = 14;
  Plan plan = MustPlan(Llama13B(), "4090-64g");
  EXPECT_EQ(plan.recompute.segment_blocks, 3);
  FindBetterSettings(Llama13B(), options_, limits_, plan);
  EXPECT_TRUE(std::ranges::any_of(plan.better, [](const BetterSetting& setting) {
    return setting.text == "--set=number_checkpoints=0";
  }));
}

TEST_F(ChooseSettingsTest, NoOtherNumberOfLayersIsFaster) {
  const Plan chosen = MustPlan(Llama13B(), "4090-64g");
  // With a third of the disk's speed, the disk binds both passes.
  for (const double slower : {1.0, 3.0}) {
    for (DiskLimits& disk : limits_.disks) {
      disk.read_bytes_per_s /= slower;
      disk.write_bytes_per_s /= slower;
    }
    const double chosen_s = MakePlan(Llama13B(), options_, limits_)->forecast->step_s;
    double least_s = chosen_s;
    TrainOptions options = options_;
    for (options.speculate_layers = 1; options.speculate_layers <= 42; ++options.speculate_layers) {
      least_s = std::min(least_s, MakePlan(Llama13B(), options, limits_)->forecast->step_s);
    }
    EXPECT_LE(chosen_s, 1.01 * least_s) << slower;
  }
  EXPECT_GT(NumSpeculative(chosen), 0);
  EXPECT_LT(NumSpeculative(chosen), 42);
}

TEST_F(ChooseSettingsTest, WhoeverSaysANumberGetsIt) {
  options_.speculate_layers = 7;
  const Plan plan = MustPlan(Llama13B(), "4090-64g");
  EXPECT_EQ(NumSpeculative(plan), 7);
  const auto& times = plan.placement.update_times;
  // Evenly: of any six layers, or seven of them, one.
  for (size_t first = 0; first + 6 <= times.size(); ++first) {
    EXPECT_EQ(std::count(times.begin() + first, times.begin() + first + 6, UpdateTime::kAfterHand),
              1)
        << first;
  }
}

TEST_F(ChooseSettingsTest, WithoutSpeedsAllAreAppliedAtOnce) {
  TrainOptions options = options_;
  MachineLimits limits = LimitsOf(*ReadMachine("4090-64g"), options);
  limits.speeds = {};
  EXPECT_EQ(NumSpeculative(*MakePlan(Llama13B(), options, limits)), 42);
}

// All of it lives in RAM, and moves bytes with a choice alone.
TEST_F(ChooseSettingsTest, NothingIsChosenByADiskOfWhichNoSpeedIsKnown) {
  options_ = LargeSteps();
  options_.batch = 2;
  options_.seq = 32;
  options_.accum = 1;
  options_.clip = 0;
  MachineLimits limits = LimitsOf(*ReadMachine("4090-64g"), options_);
  limits.disks[0].read_bytes_per_s = limits.disks[0].write_bytes_per_s = 0;
  const absl::StatusOr<Plan> plan = MakePlan(TinyDecoder(), options_, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->forecast.has_value());
  EXPECT_EQ(plan->read_bytes_per_step + plan->write_bytes_per_step, 0);
  EXPECT_EQ(NumSpeculative(*plan), 0);
}

TEST_F(ChooseSettingsTest, ARunThatClipsAppliesNoneAtOnceUnlessItIsAsked) {
  options_.gradients = GradientChoice::kAuto;
  EXPECT_EQ(NumSpeculative(MustPlan(Llama13B(), "4090-64g")), 0);
  options_.clip = 0;
  const Plan plan = MustPlan(Llama13B(), "4090-64g");
  EXPECT_GT(NumSpeculative(plan), 0);
  EXPECT_LE(plan.forecast->step_s, 1.05 * plan.forecast->bound_s);
}

// A CPU of 1 TFLOP/s: what is not computed again saves up to a quarter of a step, where the disk
// does not bind it.
class ChooseRecomputeTest : public testing::Test {
 protected:
  ChooseRecomputeTest() {
    options_.device = ComputeDevice::kCpu;
    options_.batch = options_.accum = 1;
    Machine machine = *ReadMachine("4090-64g");
    machine.cpu_matmul_flops_per_s = 1e12;
    limits_ = LimitsOf(machine, options_);
    options_.ram_bytes = 40 * kGibibyte;
  }
  Plan MustPlan(const TrainOptions& options) const {
    auto plan = MakePlan(Llama13B(), options, limits_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  TrainOptions options_ = LargeSteps();
  MachineLimits limits_;
};

TEST_F(ChooseRecomputeTest, NoOtherChoiceIsMuchFaster) {
  // Where computing binds, where both do, and where the disk does and memory is better used for
  // weights and state.
  int num_saving = 0, num_not = 0;
  for (const double disk_bytes_per_s : {7e9, 2.5e9, 1e9}) {
    for (DiskLimits& disk : limits_.disks) {
      disk.read_bytes_per_s = disk.write_bytes_per_s = disk_bytes_per_s;
    }
    const Plan chosen = MustPlan(options_);
    (chosen.recompute.num_blocks < 40 ? num_saving : num_not) += 1;
    double least_s = chosen.forecast->step_s;
    TrainOptions options = options_;
    for (const Recompute recompute : {Recompute::kAll, Recompute::kAttention}) {
      options.recompute = recompute;
      for (options.recompute_layers = 1; options.recompute_layers <= 40;
           options.recompute_layers += 3) {
        const absl::StatusOr<Plan> other = MakePlan(Llama13B(), options, limits_);
        if (other.ok()) least_s = std::min(least_s, other->forecast->step_s);
      }
    }
    EXPECT_LE(chosen.forecast->step_s, 1.02 * least_s) << disk_bytes_per_s;
  }
  EXPECT_GT(num_saving, 0);
  EXPECT_GT(num_not, 0);
}

TEST_F(ChooseRecomputeTest, WithRoomNothingIsComputedAgain) {
  options_.ram_bytes = 55 * kGibibyte;
  const Plan plan = MustPlan(options_);
  EXPECT_EQ(plan.recompute.num_blocks, 0);
  EXPECT_LT(plan.forecast->backward.compute_s, 2.2 * plan.forecast->forward.compute_s);
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options_), HasSubstr("--recompute=none"));
}

// Weights and state could use any memory: nothing is left.
TEST_F(ChooseRecomputeTest, WithoutSpeedsAllIsComputedAgain) {
  options_.ram_bytes = 55 * kGibibyte;
  limits_.speeds = {};
  const Plan plan = MustPlan(options_);
  EXPECT_EQ(plan.recompute, (BlockRecompute{Recompute::kAll, 40}));
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options_), Not(HasSubstr("recompute")));
}

TEST_F(ChooseRecomputeTest, WithoutSpeedsMemoryThatNothingElseTakesSavesComputing) {
  options_.weights_tier = options_.state_tier = TierChoice::kNvme;
  limits_.speeds = {};
  limits_.available_memory_bytes = 0;
  const auto moved_bytes = [](const Plan& plan) {
    return plan.read_bytes_per_step + plan.write_bytes_per_step;
  };
  int64_t num_blocks = 41;
  for (const int64_t ram_gib : {28, 32, 36, 40}) {
    options_.ram_bytes = ram_gib * kGibibyte;
    options_.recompute = std::nullopt;
    options_.recompute_layers = 0;
    const Plan plan = MustPlan(options_);
    EXPECT_LT(plan.recompute.num_blocks, num_blocks) << ram_gib;
    num_blocks = plan.recompute.num_blocks;
    options_.recompute = Recompute::kAll;
    EXPECT_EQ(moved_bytes(plan), moved_bytes(MustPlan(options_))) << ram_gib;
    if (num_blocks < 2) continue;
    options_.recompute_layers = num_blocks - 1;
    const absl::StatusOr<Plan> one_less = MakePlan(Llama13B(), options_, limits_);
    if (!one_less.ok()) continue;
    EXPECT_GT(moved_bytes(*one_less), moved_bytes(plan)) << ram_gib;
  }
  EXPECT_EQ(num_blocks, 0);
}

TEST_F(ChooseRecomputeTest, WhoeverSaysWhatGetsItAndIsToldOfBetter) {
  options_.recompute = Recompute::kAttention;
  options_.recompute_layers = 30;
  Plan plan = MustPlan(options_);
  EXPECT_EQ(plan.recompute, (BlockRecompute{Recompute::kAttention, 30}));
  EXPECT_EQ(ToJson(plan)["recompute"],
            Json::parse(R"({"what": "attention", "layers": 30, "segment_layers": 1,
                              "vocabulary_in_parts": false, "vocabulary_in_pieces": false})"));
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options_),
              HasSubstr("--recompute=attention --set=recompute_layers=30"));
  options_ = LargeSteps();
  options_.device = ComputeDevice::kCpu;
  options_.batch = options_.accum = 1;
  options_.ram_bytes = 55 * kGibibyte;
  options_.recompute = Recompute::kAll;
  plan = MustPlan(options_);
  EXPECT_EQ(plan.recompute, (BlockRecompute{Recompute::kAll, 40}));
  FindBetterSettings(Llama13B(), options_, limits_, plan);
  EXPECT_TRUE(std::ranges::any_of(plan.better, [](const BetterSetting& setting) {
    return setting.text == "--recompute=auto";
  }));
}

TEST_F(ChooseRecomputeTest, GradientsOfAVocabularyAreMadeInPartsWhereThatIsFaster) {
  DecoderConfig model = Llama13B();
  model.num_layers = 4;
  model.vocab_size = 256000;
  options_.ram_bytes = 24 * kGibibyte;
  // The disk binds a step: memory saves transfers. Computation does: nothing saves it.
  for (const auto& [flops_per_s, in_parts] : {std::pair(1e15, true), std::pair(1e11, false)}) {
    limits_.speeds.matmul_flops_per_s = flops_per_s;
    const auto plan = MakePlan(model, options_, limits_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->recompute.vocabulary_in_parts, in_parts) << FormatPlan(*plan, model, options_);
  }
  limits_.speeds = {};
  const auto unknown = MakePlan(model, options_, limits_);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_FALSE(unknown->recompute.vocabulary_in_parts);
}

TEST_F(ChooseRecomputeTest, ActivationsInBf16AreNamedWhereAStepMovesMany) {
  options_.accum = 64;
  options_.activations_tier = ActivationsTier::kNvme;
  limits_.speeds.matmul_flops_per_s = 1e14;  // so that the disk binds it
  Plan plan = MustPlan(options_);
  FindBetterSettings(Llama13B(), options_, limits_, plan);
  const auto found = std::ranges::find_if(plan.better, [](const BetterSetting& setting) {
    return setting.text.starts_with("--set=activations_dtype=bf16");
  });
  ASSERT_NE(found, plan.better.end()) << FormatPlan(plan, Llama13B(), options_);
  options_.activations_dtype = DType::kBF16;
  Plan better = MustPlan(options_);
  EXPECT_DOUBLE_EQ(found->step_s, better.forecast->step_s);
  FindBetterSettings(Llama13B(), options_, limits_, better);
  for (const BetterSetting& setting : better.better) {
    EXPECT_THAT(setting.text, Not(HasSubstr("--set=activations_dtype")));
  }
}

TEST_F(ChooseRecomputeTest, ANumberOfLayersNeedsToSayWhatTheyCompute) {
  options_.recompute_layers = 3;
  for (const std::optional<Recompute> recompute :
       {std::optional<Recompute>(), std::optional(Recompute::kNone)}) {
    options_.recompute = recompute;
    const auto plan = MakePlan(Llama13B(), options_, limits_);
    EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(plan.status()), HasSubstr("--set=recompute_layers=3"));
  }
}

// A step of so many tokens that the inputs of layers alone push gradients to the disk.
TEST_F(ChooseRecomputeTest, SegmentsAreTakenWhereTheyMakeRoom) {
  options_.batch = 16;
  options_.number_checkpoints = 40;
  const Plan each = MustPlan(options_);
  EXPECT_EQ(each.recompute, (BlockRecompute{Recompute::kAll, 40}));
  options_.number_checkpoints = 7;  // of 6 blocks, the last of 4
  const Plan seven = MustPlan(options_);
  EXPECT_EQ(seven.recompute.segment_blocks, 6);
  const auto checkpoints = [](const Plan& plan) {
    return std::ranges::find(plan.terms, "activation checkpoints", &PlanTerm::name)->host_bytes;
  };
  constexpr int64_t kActivation = int64_t{16} * 1024 * 5120 * 4;
  EXPECT_EQ(checkpoints(each), 41 * kActivation);
  EXPECT_EQ(checkpoints(seven), 11 * kActivation);
  EXPECT_GT(seven.forecast->backward.compute_s, 1.2 * each.forecast->backward.compute_s);
  EXPECT_THAT(FormatPlan(seven, Llama13B(), options_), HasSubstr("--set=number_checkpoints=7"));
  // All layers' weights are read once more, which shows in the bytes where gradients are in RAM
  // either way.
  options_.ram_bytes = 55 * kGibibyte;
  options_.weights_tier = options_.state_tier = TierChoice::kNvme;
  const int64_t more = MustPlan(options_).read_bytes_per_step;
  options_.number_checkpoints = 40;
  EXPECT_GT(more, MustPlan(options_).read_bytes_per_step);
}

// Whole weights are kept as long as they fit, and nothing goes in pieces that a forecast would gain
// by.
TEST_F(ChooseRecomputeTest, WeightsOfAVocabularyComeInPiecesWhereTheyDoNotFitWhole) {
  DecoderConfig model = Llama13B();
  model.num_layers = 4;
  model.vocab_size = 256000;
  options_.weights_tier = TierChoice::kNvme;
  int64_t least_bytes[] = {0, 0, 0};  // by VocabularyParts
  for (int64_t ram = kGibibyte; ram <= 24 * kGibibyte; ram += kGibibyte / 4) {
    options_.ram_bytes = ram;
    const auto plan = MakePlan(model, options_, limits_);
    if (!plan.ok()) continue;
    const int parts = plan->recompute.vocabulary_in_pieces  ? 2
                      : plan->recompute.vocabulary_in_parts ? 1
                                                            : 0;
    if (least_bytes[parts] == 0) least_bytes[parts] = ram;
    EXPECT_EQ(plan->recompute.vocabulary_in_pieces, least_bytes[1] == 0 && least_bytes[0] == 0);
  }
  EXPECT_GT(least_bytes[2], 0);
  // A table of 256,000 x 5,120 is 2.6 GB, of which two pieces are a third of a GB.
  EXPECT_GE(least_bytes[1], least_bytes[2] + 2 * kGibibyte);
}

TEST_F(ChooseRecomputeTest, ActivationsWaitOnDiskWhereRamHasNoRoomForThem) {
  options_.seq = 2048;
  options_.accum = 2;
  EXPECT_EQ(MustPlan(options_).activations.num_spilled, 0);
  options_.accum = 32;
  const auto with = [&](ActivationsTier tier) {
    options_.activations_tier = tier;
    return MakePlan(Llama13B(), options_, limits_);
  };
  EXPECT_EQ(ExitCodeOf(with(ActivationsTier::kRam).status()), ExitCode::kDoesNotFit);
  const auto asked_for = with(ActivationsTier::kNvme);
  ASSERT_TRUE(asked_for.ok()) << asked_for.status();
  EXPECT_EQ(ToJson(*asked_for), ToJson(*with(ActivationsTier::kAuto)));
  EXPECT_THAT(FormatPlan(*asked_for, Llama13B(), options_),
              HasSubstr("activations of 38 layers wait on NVMe (--set=activations_tier=nvme)"));

  // Where the disk has no room for them, memory is what lacks.
  options_.durability = Durability::kStep;
  limits_.disks[0].free_bytes = asked_for->nvme_bytes - 1;
  EXPECT_EQ(with(ActivationsTier::kRam).status(), with(ActivationsTier::kAuto).status());
  // The least that works is the least with them on disk.
  options_.ram_bytes = kGibibyte;
  EXPECT_EQ(with(ActivationsTier::kNvme).status(), with(ActivationsTier::kAuto).status());
  // Segments keep them in RAM.
  options_.number_checkpoints = 20;
  EXPECT_EQ(with(ActivationsTier::kRam).status(), with(ActivationsTier::kAuto).status());
}

TEST_F(ChooseRecomputeTest, OneSegmentOfWhichAllIsKeptIsNone) {
  options_.number_checkpoints = 1;
  const Plan one = MustPlan(options_);
  EXPECT_EQ(one.recompute, (BlockRecompute{Recompute::kAll, 40}));
  EXPECT_THAT(FormatPlan(one, Llama13B(), options_), Not(HasSubstr("segments")));
  options_.number_checkpoints = 2;
  EXPECT_EQ(MustPlan(options_).recompute.segment_blocks, 20);
}

TEST_F(ChooseRecomputeTest, SegmentsGoWithNoOtherChoice) {
  options_.number_checkpoints = 4;
  for (const bool spills : {true, false}) {
    TrainOptions options = options_;
    if (spills) {
      options.activations_tier = ActivationsTier::kNvme;
    } else {
      options.recompute = Recompute::kNone;
    }
    const auto plan = MakePlan(Llama13B(), options, limits_);
    EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kUsage);
    const std::string message = MessageOf(plan.status());
    EXPECT_THAT(message, HasSubstr("--set=number_checkpoints=4"));
    EXPECT_THAT(message,
                HasSubstr("--recompute=auto --set=recompute_layers=0 --set=activations_tier=ram"));
    EXPECT_THAT(message, HasSubstr("--set=number_checkpoints=0"));
  }
}

TEST_F(ChooseRecomputeTest, OnAGpuAllIsComputedAgain) {
  options_ = LargeSteps();
  limits_ = LimitsOf(*ReadMachine("4090-64g"), options_);
  EXPECT_EQ(MustPlan(options_).recompute, (BlockRecompute{Recompute::kAll, 40}));
  options_.recompute = Recompute::kNone;
  const auto plan = MakePlan(Llama13B(), options_, limits_);
  EXPECT_EQ(ExitCodeOf(plan.status()), ExitCode::kUsage);
  const std::string message = MessageOf(plan.status());
  EXPECT_THAT(message, HasSubstr("--recompute=auto --set=recompute_layers=0"));
  EXPECT_THAT(message, HasSubstr("--device=cpu"));
}

TEST_F(ChooseSettingsTest, BetterSettingsAreAsFastAsTheySay) {
  options_.gradients = GradientChoice::kAuto;
  Plan plan = MustPlan(Llama13B(), "4090-64g");
  FindBetterSettings(Llama13B(), options_, limits_, plan);
  ASSERT_THAT(plan.better, Not(IsEmpty()));
  EXPECT_TRUE(
      std::ranges::is_sorted(plan.better, std::ranges::greater{}, &BetterSetting::tokens_per_s));
  EXPECT_THAT(plan.better.front().text, HasSubstr("--gradients=speculate"));
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options_), HasSubstr(plan.better.front().text));
  EXPECT_EQ(ToJson(plan)["better"].size(), plan.better.size());
  options_.gradients = GradientChoice::kSpeculate;
  const Plan better = MustPlan(Llama13B(), "4090-64g");
  EXPECT_DOUBLE_EQ(plan.better.front().step_s, better.forecast->step_s);
  // At its bound there is no better setting but more tokens or another layout.
  Plan at_bound = better;
  FindBetterSettings(Llama13B(), options_, limits_, at_bound);
  for (const BetterSetting& setting : at_bound.better)
    EXPECT_THAT(setting.text, Not(HasSubstr("--ram")));
}

}  // namespace
}  // namespace forebay
