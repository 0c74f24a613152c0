#include "forebay/optimizer/offloaded_optimizer.h"

#include <bit>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/optimizer/device_state.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kNumSteps = 3;

struct Variant {
  std::string name;
  OffloadedRun::Options options;
};

class OffloadedOptimizerTest : public testing::TestWithParam<Variant> {};

TEST_P(OffloadedOptimizerTest, EveryStepLeavesTheBitsOfTheUpdateInMemory) {
  const OffloadedRun::Options& options = GetParam().options;
  InMemoryOptimizer expected(options.layout, options.gradient_dtype, options.rule);
  const TemporaryFolder folder;
  const auto run = OffloadedRun::Start(options, folder.path());
  ASSERT_TRUE(run.ok()) << run.status();
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const double expected_norm = expected.Step(step);
    const absl::StatusOr<double> norm = (*run)->Step(step);
    ASSERT_TRUE(norm.ok()) << norm.status();
    ASSERT_EQ(std::bit_cast<uint64_t>(*norm), std::bit_cast<uint64_t>(expected_norm));
    ExpectStoreHolds((*run)->store(), expected);
  }
}

std::vector<Variant> Variants() {
  const Layout bf16 = Layout::kBf16;
  const Layout fp32 = Layout::kFp32;
  constexpr DType kBf16 = DType::kBF16;
  constexpr DType kFp32 = DType::kF32;
  constexpr int64_t kWholeLayers = int64_t{1} << 20;
  // layout, dtype of gradients, tile elems, state, gradients, update threads, I/O threads, staging
  // tiles
  return {
      {"AllOnNvme", {bf16, kBf16, 6144, Tiers::kNvme, Tiers::kHost, 1, 1, 4}},
      {"AllOnNvmeWithSpilledGradients", {bf16, kBf16, 6144, Tiers::kNvme, Tiers::kNvme, 2, 2, 4}},
      {"AllInMemory", {bf16, kBf16, 6144, Tiers::kHost, Tiers::kHost, 3, 1, 4}},
      {"StateInMemoryWithSpilledGradients",
       {bf16, kBf16, 6144, Tiers::kHost, Tiers::kNvme, 2, 2, 2}},
      {"MixedTiers", {bf16, kBf16, 2048, Tiers::kMixed, Tiers::kMixed, 3, 2, 3}},
      {"SmallTilesAndTheLeastStaging", {bf16, kBf16, 2048, Tiers::kNvme, Tiers::kNvme, 1, 2, 2}},
      {"StagingForTheWholeStore", {bf16, kBf16, 6144, Tiers::kNvme, Tiers::kNvme, 2, 1, 64}},
      {"OneTileForEachLayer", {bf16, kBf16, kWholeLayers, Tiers::kNvme, Tiers::kMixed, 2, 2, 2}},
      {"StateOnADevice", {bf16, kBf16, 2048, Tiers::kDevice, Tiers::kHost, 2, 2, 2}},
      {"StateInThreePlaces", {bf16, kBf16, 2048, Tiers::kThree, Tiers::kMixed, 2, 2, 3}},
      {"Fp32LayoutInThreePlaces", {fp32, kFp32, 2048, Tiers::kThree, Tiers::kNvme, 2, 2, 3}},
      {"Fp32Gradients", {bf16, kFp32, 6144, Tiers::kMixed, Tiers::kMixed, 2, 2, 4}},
      {"Fp32Layout", {fp32, kFp32, 6144, Tiers::kMixed, Tiers::kMixed, 2, 2, 4}},
      {"Fp32LayoutWithBf16Gradients", {fp32, kBf16, 2048, Tiers::kNvme, Tiers::kNvme, 1, 1, 4}},
  };
}

// Every layout, and every optimizer.
std::vector<Variant> Formats() {
  const std::pair<std::string, OptimizerConfig> rules[] = {
      {"AdamW", kTestAdamW},
      {"Adam", {.kind = OptimizerKind::kAdam}},
      {"Adagrad", {.kind = OptimizerKind::kAdagrad}},
      {"Lion", {.kind = OptimizerKind::kLion, .beta2 = 0.99}},
      {"SgdWithMomentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9}},
      {"Sgd", {.kind = OptimizerKind::kSgd}},
  };
  std::vector<Variant> variants;
  for (const Layout layout : kLayouts) {
    for (const auto& [name, rule] : rules) {
      std::string layout_name(NameOf(layout));
      std::erase(layout_name, '-');
      for (const int64_t tile_elems : {2048, 6144}) {
        const bool is_small = tile_elems == 2048;
        if (!is_small && rule.kind != OptimizerKind::kAdamW) continue;
        variants.push_back({layout_name + name + (is_small ? "SmallTiles" : ""),
                            {.layout = layout,
                             .gradient_dtype = WeightDType(layout),
                             .tile_elems = tile_elems,
                             .state = is_small ? Tiers::kMixed : Tiers::kNvme,
                             .gradients = is_small ? Tiers::kMixed : Tiers::kHost,
                             .num_threads = is_small ? 2 : 1,
                             .rule = rule}});
      }
    }
  }
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Variants, OffloadedOptimizerTest, testing::ValuesIn(Variants()),
                         [](const testing::TestParamInfo<Variant>& variant) {
                           return variant.param.name;
                         });
INSTANTIATE_TEST_SUITE_P(Formats, OffloadedOptimizerTest, testing::ValuesIn(Formats()),
                         [](const testing::TestParamInfo<Variant>& variant) {
                           return variant.param.name;
                         });

class OffloadedOptimizerBehaviour : public testing::Test {
 protected:
  std::unique_ptr<OffloadedRun> Start(const OffloadedRun::Options& options) {
    auto run = OffloadedRun::Start(options, folder_.path());
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *std::move(run) : nullptr;
  }

  const TemporaryFolder folder_;
  const OffloadedRun::Options mixed_ = {.state = Tiers::kMixed, .gradients = Tiers::kMixed};
};

TEST_F(OffloadedOptimizerBehaviour, ARunThatIsOpenedAgainContinuesWithTheSameBits) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    expected.Step(step);
    const auto run = Start(mixed_);
    ASSERT_TRUE(run->Step(step).ok());
  }
  ExpectStoreHolds(Start(mixed_)->store(), expected);
}

TEST_F(OffloadedOptimizerBehaviour, OtherTiersAtEveryOpeningContinueWithTheSameBits) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  int64_t step = 0;
  // Gradients begin to be spilled late, so that the area is made, grown and left alone.
  for (const auto& [state, gradients] : {std::pair{Tiers::kHost, Tiers::kHost},
                                         {Tiers::kNvme, Tiers::kMixed},
                                         {Tiers::kMixed, Tiers::kNvme},
                                         {Tiers::kThree, Tiers::kNvme},
                                         {Tiers::kDevice, Tiers::kHost},
                                         {Tiers::kHost, Tiers::kMixed},
                                         {Tiers::kNvme, Tiers::kHost}}) {
    OffloadedRun::Options options = mixed_;
    options.state = state;
    options.gradients = gradients;
    expected.Step(++step);
    const auto run = Start(options);
    ASSERT_TRUE(run->Step(step).ok());
    ExpectStoreHolds(run->store(), expected);
  }
}

TEST_F(OffloadedOptimizerBehaviour, LayersMayBeUpdatedInAnyOrder) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  OffloadedRun::Options options = mixed_;
  options.tile_elems = 2048;
  const auto run = Start(options);
  for (const std::vector<int>& order :
       {std::vector<int>{2, 0, 3, 1}, std::vector<int>{3, 2, 1, 0}, std::vector<int>{1, 3, 0, 2}}) {
    const int64_t step = run->store().committed().step + 1;
    expected.Step(step);
    const auto stats = run->Backward(step);
    ASSERT_TRUE(stats.ok());
    ASSERT_TRUE(run->optimizer().BeginUpdate(ScalarsOfStep(step, stats->norm)).ok());
    for (const int layer : order) ASSERT_TRUE(run->UpdateLayer(layer).ok());
    ASSERT_TRUE(run->Commit(step).ok());
    ExpectStoreHolds(run->store(), expected);
  }
}

TEST_F(OffloadedOptimizerBehaviour, AnUpdateIsDueFromItsReleaseUntilItIsApplied) {
  const auto run = Start(mixed_);
  const auto stats = run->Backward(1);
  ASSERT_TRUE(stats.ok());
  EXPECT_FALSE(run->optimizer().UpdateIsDue(2));
  ASSERT_TRUE(run->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  EXPECT_TRUE(run->optimizer().UpdateIsDue(2));
  ASSERT_TRUE(run->UpdateLayer(2).ok());
  EXPECT_FALSE(run->optimizer().UpdateIsDue(2));
  EXPECT_TRUE(run->optimizer().UpdateIsDue(1));
}

// While gradients are handed over, which is before anything is known of the update's scalars.
TEST_F(OffloadedOptimizerBehaviour, StateIsReadBeforeAnUpdateBegins) {
  const auto run = Start({.state = Tiers::kNvme, .gradients = Tiers::kHost});
  ASSERT_TRUE(run->Step(1).ok());
  const auto read_bytes = [&] { return run->store().engine().stats().read_bytes; };
  const int64_t before = read_bytes();
  ASSERT_TRUE(run->Hand(3, 2).ok());
  const Stopwatch stopwatch;
  while (read_bytes() == before && stopwatch.Seconds() < 10) std::this_thread::yield();
  EXPECT_GT(read_bytes(), before);
}

TEST_F(OffloadedOptimizerBehaviour, AStepAbandonedInBackwardLeavesNoTrace) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  const auto run = Start(mixed_);
  const Inventory& inventory = run->store().inventory();
  for (const int layer : {3, 2}) {
    ASSERT_TRUE(run->optimizer()
                    .Hand(Fp32Gradient(layer, GradientOf(inventory, layer, 77)), run->pool())
                    .ok());
  }
  run->optimizer().AbandonStep();
  expected.Step(1);
  ASSERT_TRUE(run->Step(1).ok());
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(OffloadedOptimizerBehaviour, AStepAbandonedAfterBackwardLeavesNoTrace) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  const auto run = Start(mixed_);
  ASSERT_TRUE(run->Backward(77).ok());
  run->optimizer().AbandonStep();
  expected.Step(1);
  ASSERT_TRUE(run->Step(1).ok());
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(OffloadedOptimizerBehaviour, AbandoningAStepKeepsTheUpdatesOfTheStepBefore) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  const auto run = Start(mixed_);
  const auto stats = run->Backward(1);
  ASSERT_TRUE(stats.ok());
  ASSERT_TRUE(run->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  ASSERT_TRUE(run->UpdateLayer(0).ok());
  run->optimizer().AbandonStep();  // step 2, in its forward pass
  for (const int layer : {1, 2, 3}) ASSERT_TRUE(run->UpdateLayer(layer).ok());
  ASSERT_TRUE(run->Commit(1).ok());
  expected.Step(1);
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(OffloadedOptimizerBehaviour, NamesTheFirstLayerWithAGradientThatIsNotFinite) {
  using Limits = std::numeric_limits<float>;
  // The last one is finite in fp32, but not as the bf16 that is handed over.
  for (const float bad : {Limits::quiet_NaN(), -Limits::infinity(), Limits::max()}) {
    const auto run = Start(mixed_);
    for (int layer = 3; layer >= 0; --layer) {
      std::vector<float> gradient = GradientOf(run->store().inventory(), layer, 1);
      if (layer == 1 || layer == 2) gradient[100] = bad;
      ASSERT_TRUE(run->optimizer().Hand(Fp32Gradient(layer, gradient), run->pool()).ok());
    }
    const auto stats = run->optimizer().FinishBackward();
    ASSERT_TRUE(stats.ok());
    EXPECT_EQ(stats->first_nonfinite_layer, 2);
    EXPECT_FALSE(std::isfinite(stats->norm));
  }
}

TEST_F(OffloadedOptimizerBehaviour, ReportsFiniteGradientsAsSuch) {
  const auto run = Start(mixed_);
  const auto stats = run->Backward(1);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->first_nonfinite_layer, -1);
}

TEST_F(OffloadedOptimizerBehaviour, ChargesTheBudgetAtMostWhatThePlannerIsTold) {
  OffloadedRun::Options options = mixed_;
  options.gradients = Tiers::kNvme;
  const auto run = Start(options);
  const OffloadedOptimizerOptions told = {
      .rule = kTestAdamW, .gradient_dtype = DType::kBF16, .num_staging_tiles = 4};
  const auto charged = run->budget().by_purpose();
  EXPECT_EQ(charged.at("optimizer staging") + charged.at("checksums of gradients"),
            OffloadedOptimizer::StagingBytes(told, run->store().tiles()));
  int64_t state_bytes = 0;
  for (int i = 0; i < run->store().tiles().num_tiles(); ++i) {
    if (run->placement().state[i] == Tier::kHost) {
      state_bytes += run->store().tiles().StateBytes(run->store().tiles().tiles()[i]);
    }
  }
  EXPECT_EQ(charged.at("optimizer state in RAM"), state_bytes);
  EXPECT_FALSE(charged.contains("gradients held"));
}

TEST_F(OffloadedOptimizerBehaviour, ChargesBothBudgetsForStateOnADeviceAsThePlannerIsTold) {
  const auto run = Start({.state = Tiers::kThree, .gradients = Tiers::kNvme});
  const TileMap& tiles = run->store().tiles();
  const OffloadedOptimizerOptions told = {.rule = kTestAdamW,
                                          .gradient_dtype = DType::kBF16,
                                          .num_staging_tiles = 4,
                                          .may_have_state_on_device = true};
  int64_t on_device_bytes = DeviceState::WorkBytes(tiles, DType::kBF16);
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    if (run->placement().state[i] == Tier::kDevice) {
      on_device_bytes += tiles.StateBytes(tiles.tiles()[i]);
    }
  }
  EXPECT_EQ(run->device_budget().by_purpose().at("optimizer state"), on_device_bytes);
  const auto charged = run->budget().by_purpose();
  const int64_t told_bytes = OffloadedOptimizer::StagingBytes(told, tiles);
  EXPECT_EQ(told_bytes, OffloadedOptimizer::StagingBytes(told, run->placement(), tiles));
  // The fixture's device has gradients of whole layers too, which the planner is told apart.
  EXPECT_EQ(charged.at("optimizer staging") + charged.at("checksums of gradients") +
                charged.at("optimizer state from and to the GPU"),
            told_bytes);
}

TEST_F(OffloadedOptimizerBehaviour, NeedsAnAreaForSpilledGradientsOnly) {
  const auto run = Start(mixed_);
  const TileMap& tiles = run->store().tiles();
  const OffloadedOptimizerOptions bf16 = {.rule = kTestAdamW, .gradient_dtype = DType::kBF16};
  const OffloadedOptimizerOptions fp32 = {.rule = kTestAdamW, .gradient_dtype = DType::kF32};
  // Layers 0 and 2 are spilled.
  const int64_t spilled_elems = tiles.layer_elems(0) + tiles.layer_elems(2);
  EXPECT_EQ(Total(OffloadedOptimizer::GradientAreaBytes(bf16, run->placement(), tiles)),
            2 * spilled_elems);
  EXPECT_EQ(Total(OffloadedOptimizer::GradientAreaBytes(fp32, run->placement(), tiles)),
            4 * spilled_elems);
}

TEST_F(OffloadedOptimizerBehaviour, CountsTheElementsItUpdated) {
  const auto run = Start(mixed_);
  ASSERT_TRUE(run->Step(1).ok());
  EXPECT_EQ(run->optimizer().stats().updated_elems, run->store().inventory().num_padded_elems());
  EXPECT_GT(run->optimizer().stats().update_s, 0);
}

TEST_F(OffloadedOptimizerBehaviour, RefusesAGradientThatTouchesPadding) {
  const auto run = Start(mixed_);
  std::vector<float> gradient = GradientOf(run->store().inventory(), 1, 1);
  const TensorSpec& norm = *run->store().inventory().Find("layers.0.norm");
  gradient[norm.offset_elems + norm.num_elems] = 1e-3f;  // the next tensor begins later
  const absl::Status status = run->optimizer().Hand(Fp32Gradient(1, gradient), run->pool());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_THAT(MessageOf(status),
              HasSubstr("the gradient of layer 'layers.0' has 0.001 at element"));
  // Nothing of it was taken.
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  EXPECT_EQ(*run->Step(1), expected.Step(1));
  ExpectStoreHolds(run->store(), expected);
}

}  // namespace
}  // namespace forebay
