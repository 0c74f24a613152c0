// Groups with settings of their own that change, frozen tensors, and tensors that got no gradient:
// the result is that of the reference over whole tensors in memory, whatever lives where, however
// the update is made, and in however many processes.
#include "forebay/optimizer/tensor_updates.h"

#include <bit>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kNumGroupedSteps = 6;

// Tensors of OptimizerInventory, by index: layers.0 is 1 to 4, layers.1 is 5 to 8, the head is 9.
// Two settings a tensor change with the step; the last group is frozen but in the fourth step.
StepSettings EverythingChanges() {
  StepSettings settings;
  settings.of_tensor = {0, 1, 0, 2, 1, 3, 0, 0, 3, 2};
  settings.groups = [](int64_t step) {
    const auto t = static_cast<double>(step);
    return std::vector<ParameterGroup>{
        {.lr_scale = 1, .weight_decay = 0.1},
        {.lr_scale = 0.5 + t, .weight_decay = 0.01 * t, .beta1 = 0.8, .eps = 1e-6 * (t + 1)},
        {.lr_scale = 3, .weight_decay = 0, .beta1 = 0.5 + 0.05 * t, .beta2 = 0.99, .eps = 1e-4},
        {.lr_scale = 2, .weight_decay = 0.3, .beta2 = 0.9, .frozen = step != 4}};
  };
  settings.without_gradient = [](int64_t step) {
    // One at an end of its layer, in the midst, several, whole layers, and none.
    const std::vector<std::vector<int>> without = {{}, {2}, {0, 1, 3}, {}, {1, 2, 3, 4, 9}, {7}};
    return without[static_cast<size_t>(step) % without.size()];
  };
  return settings;
}

struct GroupedVariant {
  std::string name;
  OffloadedRun::Options options;
};

std::vector<GroupedVariant> GroupedVariants() {
  std::vector<GroupedVariant> variants = {
      {"OnNvme", {}},
      {"SmallTilesAndThreads", {.tile_elems = 2048, .num_threads = 3, .num_io_threads = 2}},
      {"InMemory", {.state = Tiers::kHost, .num_threads = 2}},
      {"SpilledGradients", {.gradients = Tiers::kNvme, .num_staging_tiles = 2}},
      {"Mixed", {.tile_elems = 2048, .state = Tiers::kMixed, .gradients = Tiers::kMixed}},
      {"WholeLayers", {.tile_elems = int64_t{1} << 20, .num_threads = 2}},
      {"Speculative", {.tile_elems = 2048, .gradients = Tiers::kNvme, .speculative = true}},
      {"PartlySpeculative",
       {.tile_elems = 2048, .gradients = Tiers::kMixed, .num_threads = 2, .speculative = true}},
      {"Delayed", {.gradients = Tiers::kMixed, .delayed = true}},
      {"DelayedInMemory", {.tile_elems = 2048, .state = Tiers::kHost, .delayed = true}},
      {"StateOnADevice", {.tile_elems = 2048, .state = Tiers::kDevice, .num_threads = 2}},
      {"StateInThreePlaces",
       {.tile_elems = 2048,
        .state = Tiers::kThree,
        .gradients = Tiers::kMixed,
        .weights = Tiers::kMixed}},
      {"StateInThreePlacesInFp16",
       {.layout = Layout::kFp16, .gradient_dtype = DType::kF16, .state = Tiers::kThree}},
      {"StateOnADeviceInInt8", {.layout = Layout::kInt8Moments, .state = Tiers::kDevice}},
      {"SpeculativeStateInThreePlaces",
       {.tile_elems = 2048,
        .state = Tiers::kThree,
        .gradients = Tiers::kMixed,
        .speculative = true}},
      {"DelayedStateInThreePlaces",
       {.tile_elems = 2048, .state = Tiers::kThree, .gradients = Tiers::kMixed, .delayed = true}},
  };
  for (const Layout layout : kLayouts) {
    std::string name(NameOf(layout));
    std::erase(name, '-');
    variants.push_back({"Layout" + name,
                        {.layout = layout,
                         .gradient_dtype = WeightDType(layout),
                         .tile_elems = 2048,
                         .gradients = Tiers::kMixed}});
  }
  const std::pair<std::string, OptimizerConfig> rules[] = {
      {"Adam", {.kind = OptimizerKind::kAdam}},
      {"Adagrad", {.kind = OptimizerKind::kAdagrad}},
      {"Lion", {.kind = OptimizerKind::kLion, .beta2 = 0.99}},
      {"SgdWithMomentum", {.kind = OptimizerKind::kSgd, .momentum = 0.9}},
  };
  for (const auto& [name, rule] : rules) {
    variants.push_back({name, {.gradients = Tiers::kMixed, .rule = rule}});
    variants.push_back({name + "InInt8", {.layout = Layout::kInt8Moments, .rule = rule}});
  }
  return variants;
}

class TensorUpdatesTest : public testing::TestWithParam<GroupedVariant> {
 protected:
  TensorUpdatesTest() {
    options_ = GetParam().options;
    options_.settings = &settings_;
  }

  void ExpectTheBitsOfTheReference();

  const StepSettings settings_ = EverythingChanges();
  const TemporaryFolder folder_;
  OffloadedRun::Options options_;
};

void TensorUpdatesTest::ExpectTheBitsOfTheReference() {
  InMemoryOptimizer expected(options_.layout, options_.gradient_dtype, options_.rule, &settings_);
  const auto run = OffloadedRun::Start(options_, folder_.path());
  ASSERT_TRUE(run.ok()) << run.status();
  for (int64_t step = 1; step <= kNumGroupedSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const auto norm = (*run)->Step(step);
    ASSERT_TRUE(norm.ok()) << norm.status();
    ASSERT_EQ(std::bit_cast<uint64_t>(*norm), std::bit_cast<uint64_t>(expected.Step(step)));
    ExpectStoreHolds((*run)->store(), expected);
    const auto missed = (*run)->optimizer().missed_updates();
    for (size_t i = 0; i < missed.size(); ++i) {
      ASSERT_EQ(missed[i], expected.missed_updates(static_cast<int>(i), step)) << "tensor " << i;
    }
  }
}

TEST_P(TensorUpdatesTest, EveryStepLeavesTheBitsOfTheReference) {
  ExpectTheBitsOfTheReference();
}

TEST_P(TensorUpdatesTest, SoDoesEveryStepWithGradientsOfAGpu) {
  const auto device = CreateCudaDevice(0);
  if (!device.ok()) GTEST_SKIP() << MessageOf(device.status());
  options_.gradient_device = device->get();
  ExpectTheBitsOfTheReference();
}

TEST_P(TensorUpdatesTest, SoDoesEveryStepWithGradientsOfAGpuThatComeInParts) {
  const auto device = CreateCudaDevice(0);
  if (!device.ok()) GTEST_SKIP() << MessageOf(device.status());
  options_.gradient_device = device->get();
  options_.landing_elems = 3 * kNormBlockElems;
  ExpectTheBitsOfTheReference();
}

TEST_P(TensorUpdatesTest, AnotherProcessAtEveryStepGoesOnWithWhatWasMissed) {
  InMemoryOptimizer expected(options_.layout, options_.gradient_dtype, options_.rule, &settings_);
  for (int64_t step = 1; step <= kNumGroupedSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const auto run = OffloadedRun::Start(options_, folder_.path());
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_TRUE((*run)->Step(step).ok());
    expected.Step(step);
    const auto missed = (*run)->optimizer().missed_updates();
    options_.missed_updates.assign(missed.begin(), missed.end());
    ExpectStoreHolds((*run)->store(), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, TensorUpdatesTest, testing::ValuesIn(GroupedVariants()),
                         [](const testing::TestParamInfo<GroupedVariant>& variant) {
                           return variant.param.name;
                         });

// ---- Behaviour

class TensorUpdatesBehaviour : public testing::Test {
 protected:
  TensorUpdatesBehaviour() { mixed_.settings = &settings_; }

  std::unique_ptr<OffloadedRun> Start(const OffloadedRun::Options& options) {
    auto run = OffloadedRun::Start(options, folder_.path());
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? *std::move(run) : nullptr;
  }
  InMemoryOptimizer Expected() const {
    return {Layout::kBf16, DType::kBF16, kTestAdamW, &settings_};
  }
  static void ExpectMisuse(const absl::Status& status, const std::string& message) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(message));
  }

  StepSettings settings_ = EverythingChanges();
  const TemporaryFolder folder_;
  OffloadedRun::Options mixed_ = {.state = Tiers::kMixed, .gradients = Tiers::kMixed};
};

// A run without the feature is the judge: groups that say what the rule says change nothing.
TEST_F(TensorUpdatesBehaviour, GroupsThatSayWhatTheRuleSaysLeaveTheBitsOfARunWithout) {
  const Inventory inventory = OptimizerInventory();
  settings_.of_tensor = DecayGroups(inventory, kTestWeightDecay).of_tensor;
  settings_.groups = [](int64_t) {
    const ParameterGroup same = {
        .beta1 = kTestAdamW.beta1, .beta2 = kTestAdamW.beta2, .eps = kTestAdamW.eps};
    std::vector<ParameterGroup> groups(2, same);
    groups[0].weight_decay = kTestWeightDecay;
    return groups;
  };
  settings_.without_gradient = [](int64_t) { return std::vector<int>(); };
  const auto run = Start(mixed_);
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(*run->Step(step), expected.Step(step));
    ExpectStoreHolds(run->store(), expected);
  }
  for (const int64_t missed : run->optimizer().missed_updates()) EXPECT_EQ(missed, 0);
}

// Torch counts a parameter's steps from its own first gradient: one that comes late is corrected as
// one that has just begun.
TEST_F(TensorUpdatesBehaviour, ATensorThatComesLateIsUpdatedAsIfTheRunHadJustBegun) {
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  settings_.of_tensor.assign(all.size(), 0);
  settings_.groups = [](int64_t) { return std::vector<ParameterGroup>{{.weight_decay = 0.1}}; };
  settings_.without_gradient = [&](int64_t step) { return step < 4 ? all : std::vector<int>(); };
  const auto late = Start(mixed_);
  for (int64_t step = 1; step <= 3; ++step) EXPECT_EQ(*late->Step(step), 0);
  for (const int64_t missed : late->optimizer().missed_updates()) EXPECT_EQ(missed, 3);
  const absl::Status status = [&]() -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const GradientStats stats, late->Backward(4));
    UpdateScalars scalars = ScalarsOfStep(1, stats.norm);
    scalars.step = 4;
    FOREBAY_RETURN_IF_ERROR(late->optimizer().BeginUpdate(scalars));
    return late->ApplyAndCommit(4);
  }();
  ASSERT_TRUE(status.ok()) << status;

  // The same gradients as the first update of all.
  settings_.without_gradient = [](int64_t) { return std::vector<int>(); };
  const TemporaryFolder folder;
  const auto first = OffloadedRun::Start(mixed_, folder.path());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto stats = (*first)->Backward(4);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_TRUE((*first)->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  ASSERT_TRUE((*first)->ApplyAndCommit(1).ok());
  const Inventory inventory = OptimizerInventory();
  for (const TensorSpec& tensor : inventory.tensors()) {
    for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
      std::vector<float> a(static_cast<size_t>(tensor.num_elems));
      std::vector<float> b(a.size());
      ASSERT_TRUE(late->store().ReadTensor(tensor, plane, 0, a).ok());
      ASSERT_TRUE((*first)->store().ReadTensor(tensor, plane, 0, b).ok());
      ASSERT_EQ(a, b) << tensor.name;
    }
  }
}

TEST_F(TensorUpdatesBehaviour, AnAbandonedStepCountsForNothing) {
  for (const bool speculative : {false, true}) {
    SCOPED_TRACE(speculative);
    const TemporaryFolder folder;
    OffloadedRun::Options options = mixed_;
    options.speculative = speculative;
    if (speculative) {
      options.state = Tiers::kNvme;
      options.gradients = Tiers::kNvme;
    }
    const auto run = OffloadedRun::Start(options, folder.path());
    ASSERT_TRUE(run.ok()) << run.status();
    InMemoryOptimizer expected = Expected();
    for (int64_t step = 1; step <= 3; ++step) {
      // Steps that leave out others than the next.
      ASSERT_TRUE((*run)->SetGroups(step + 1).ok());
      ASSERT_TRUE((*run)->Hand(3, step + 3).ok());
      ASSERT_TRUE((*run)->Hand(1, step + 3).ok());
      (*run)->optimizer().AbandonStep();
      ASSERT_TRUE((*run)->Backward(step + 1).ok());
      (*run)->optimizer().AbandonStep();
      if (speculative) {
        ASSERT_TRUE((*run)->SpeculativeBackward(ScalarsOfStep(step, 0), 1e30).ok());
        (*run)->optimizer().AbandonStep();
      }
      const auto norm = (*run)->Step(step);
      ASSERT_TRUE(norm.ok()) << norm.status();
      EXPECT_EQ(*norm, expected.Step(step));
      ExpectStoreHolds((*run)->store(), expected);
      EXPECT_EQ((*run)->optimizer().missed_updates()[2], expected.missed_updates(2, step));
    }
  }
}

// Settings of a step are given while the update before is due, or pending.
TEST_F(TensorUpdatesBehaviour, SettingsAreThoseOfTheUpdatesThatBeginAfterThem) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    const TemporaryFolder folder;
    OffloadedRun::Options options = mixed_;
    options.delayed = delayed;
    const auto started = OffloadedRun::Start(options, folder.path());
    ASSERT_TRUE(started.ok()) << started.status();
    OffloadedRun& run = **started;
    InMemoryOptimizer expected = Expected();
    for (int64_t step = 1; step <= 3; ++step) {
      const auto stats = run.Backward(step);
      ASSERT_TRUE(stats.ok()) << stats.status();
      ASSERT_TRUE(run.FinishDelayed(step - 1).ok());
      ASSERT_TRUE(run.store().BeginWriting().ok());
      const UpdateScalars scalars = ScalarsOfStep(step, stats->norm);
      OffloadedOptimizer& optimizer = run.optimizer();
      ASSERT_TRUE((delayed ? optimizer.modes().BeginDelayedUpdate(scalars, ResidentWrites::kNow)
                           : optimizer.BeginUpdate(scalars))
                      .ok());
      // Frozen here, too, is what was not, and the other way round.
      ASSERT_TRUE(run.SetGroups(step + 1).ok());
      if (delayed) {
        ASSERT_TRUE(run.FinishDelayed(step).ok());
      } else {
        ASSERT_TRUE(run.ApplyAndCommit(step).ok());
      }
      expected.Step(step);
      ExpectStoreHolds(run.store(), expected);
    }
  }
}

// ---- Misuse: nothing is changed by any of it.

TEST_F(TensorUpdatesBehaviour, WhatIsHandedOverWronglyIsRefusedAndTheStepGoesOn) {
  const auto run = Start(mixed_);
  OffloadedOptimizer& optimizer = run->optimizer();
  InMemoryOptimizer expected = Expected();
  const Inventory& inventory = run->store().inventory();
  const std::vector<float> gradient = GradientOf(inventory, 1, 1);
  const auto hand = [&](int layer, std::span<const float> elems, std::vector<int> without = {}) {
    return optimizer.Hand(Fp32Gradient(layer, elems, 0, without), run->pool());
  };
  ASSERT_TRUE(run->SetGroups(1).ok());
  ASSERT_TRUE(run->Hand(2, 1).ok());
  ExpectMisuse(run->Hand(2, 1), "layer 'layers.1' is handed over twice");
  ExpectMisuse(hand(4, gradient), "for layer 4, and layers are 0 to 3");
  ExpectMisuse(hand(-1, gradient), "for layer -1, and layers are 0 to 3");
  ExpectMisuse(hand(1, std::span(gradient).first(2047)), "with 2047 elements, and the layer has");
  ExpectMisuse(hand(1, {}), "with 0 elements");
  ExpectMisuse(hand(1, gradient, {1, 5}), "tensor 5 is said to be without a gradient");
  ExpectMisuse(hand(1, gradient, {-1}), "indices 1 to 4");
  ExpectMisuse(hand(1, gradient, {10}), "indices 1 to 4");
  ExpectMisuse(optimizer.FinishBackward().status(), "no gradient of layer 'embed' was");
  LayerGradient elsewhere = Fp32Gradient(1, gradient);
  elsewhere.device = DeviceKind::kCuda;
  ExpectMisuse(optimizer.Hand(elsewhere, run->pool()), "the optimizer was made without one");
  const LayerGradient in_fp16 = {
      .layer = 1, .bytes = elsewhere.bytes.first(elsewhere.bytes.size() / 2), .dtype = DType::kF16};
  ExpectMisuse(optimizer.Hand(in_fp16, run->pool()), "is fp16, and gradients are held in bf16");
  LayerGradient with_squares = Fp32Gradient(1, gradient);
  const std::vector<double> squares(gradient.size() / kNormBlockElems);
  with_squares.block_squares = squares;  // of elements that are rounded after that
  ExpectMisuse(optimizer.Hand(with_squares, run->pool()), "blocks of fp32. Give those of each");
  ASSERT_TRUE(run->Hand(0, 1).ok());
  ExpectMisuse(optimizer.FinishBackward().status(), "no gradient of layer 'layers.0' was");
  ASSERT_TRUE(run->Hand(1, 1).ok());
  ASSERT_TRUE(run->Hand(3, 1).ok());
  const auto stats = optimizer.FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->norm, expected.Step(1));
  ExpectMisuse(run->Hand(1, 1), "after the step's backward pass");
  ExpectMisuse(optimizer.FinishBackward().status(), "ended twice");
  ASSERT_TRUE(optimizer.BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  ExpectMisuse(run->Hand(1, 1), "while an update is due");
  ASSERT_TRUE(run->ApplyAndCommit(1).ok());
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(TensorUpdatesBehaviour, AnUpdateOutOfTurnIsRefusedAndTheStepGoesOn) {
  const auto run = Start(mixed_);
  OffloadedOptimizer& optimizer = run->optimizer();
  InMemoryOptimizer expected = Expected();
  const UpdateScalars scalars = ScalarsOfStep(1, expected.Step(1));
  ExpectMisuse(optimizer.BeginUpdate(scalars), "update 1 begins before its backward pass");
  ExpectMisuse(optimizer.modes().BeginSpeculation(scalars, 1), "no layer is speculative");
  ASSERT_TRUE(run->Backward(1).ok());
  ExpectMisuse(optimizer.modes().BeginDelayedUpdate(scalars, ResidentWrites::kNow),
               "the placement delays none");
  UpdateScalars none = scalars;
  none.step = 0;
  ExpectMisuse(optimizer.BeginUpdate(none), "this is said to be update 0");
  for (const int64_t missed : optimizer.missed_updates()) EXPECT_EQ(missed, 0);
  ASSERT_TRUE(optimizer.BeginUpdate(scalars).ok());
  ExpectMisuse(optimizer.BeginUpdate(scalars), "while that before it is due");
  ASSERT_TRUE(run->ApplyAndCommit(1).ok());
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(TensorUpdatesBehaviour, SpeculationOutOfTurnIsRefusedAndTheStepGoesOn) {
  OffloadedRun::Options options = mixed_;
  options.speculative = true;
  options.state = options.gradients = Tiers::kNvme;
  const auto run = Start(options);
  OffloadedOptimizer& optimizer = run->optimizer();
  InMemoryOptimizer expected = Expected();
  const UpdateScalars scalars = ScalarsOfStep(1, expected.Step(1));
  ASSERT_TRUE(run->SetGroups(1).ok());
  ASSERT_TRUE(run->Hand(3, 1).ok());
  ExpectMisuse(optimizer.modes().BeginSpeculation(scalars, 1e30), "in the midst of a step");
  optimizer.AbandonStep();
  ASSERT_TRUE(run->store().BeginWriting().ok());
  ASSERT_TRUE(optimizer.modes().BeginSpeculation(scalars, 1e30).ok());
  ExpectMisuse(optimizer.modes().BeginSpeculation(scalars, 1e30), "in the midst of a step");
  ExpectMisuse(run->SetGroups(4), "set free in the midst of a step");
  ExpectMisuse(run->Hand(1, 1), "layer 'layers.0' is handed over before that of layer 'head'");
  ASSERT_TRUE(run->Backward(1).ok());
  UpdateScalars others = scalars;
  others.beta1 = 0.5;
  ExpectMisuse(optimizer.BeginUpdate(others), "other scalars than its speculation");
  ExpectMisuse(optimizer.BeginUpdate(scalars, ResidentWrites::kDeferred), "deferred writes");
  ASSERT_TRUE(optimizer.BeginUpdate(scalars).ok());
  ASSERT_TRUE(run->ApplyAndCommit(1).ok());
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(TensorUpdatesBehaviour, SettingsThatCannotBeAreRefusedAndThoseBeforeStay) {
  const auto run = Start(mixed_);
  OffloadedOptimizer& optimizer = run->optimizer();
  const auto with = [&](auto change) {
    std::vector<ParameterGroup> groups = settings_.groups(1);
    change(groups[1]);
    return optimizer.SetGroups(groups);
  };
  using Limits = std::numeric_limits<double>;
  ASSERT_TRUE(run->SetGroups(1).ok());
  const std::vector<ParameterGroup> three(3);
  ExpectMisuse(optimizer.SetGroups(three), "3 parameter groups are set, and there are 4");
  ExpectMisuse(with([](ParameterGroup& g) { g.lr_scale = Limits::quiet_NaN(); }), "lr_scale");
  ExpectMisuse(with([](ParameterGroup& g) { g.weight_decay = Limits::infinity(); }), "decay");
  ExpectMisuse(with([](ParameterGroup& g) { g.beta1 = 1; }), "beta1 of 1");
  ExpectMisuse(with([](ParameterGroup& g) { g.beta2 = -0.1; }), "beta2 of -0.1");
  ExpectMisuse(with([](ParameterGroup& g) { g.eps = 0; }), "eps of 0");
  ExpectMisuse(with([](ParameterGroup& g) { g.eps = 1e-60; }), "eps of 1e-60");
  ASSERT_TRUE(run->Hand(3, 1).ok());
  ExpectMisuse(with([](ParameterGroup& g) { g.frozen = true; }), "frozen in the midst of a step");
  optimizer.AbandonStep();
  InMemoryOptimizer expected = Expected();
  // Step 1's settings are set already.
  for (int layer = 3; layer >= 0; --layer) ASSERT_TRUE(run->Hand(layer, 1).ok());
  const auto stats = optimizer.FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_TRUE(optimizer.BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  ASSERT_TRUE(run->ApplyAndCommit(1).ok());
  EXPECT_EQ(stats->norm, expected.Step(1));
  ExpectStoreHolds(run->store(), expected);
}

TEST_F(TensorUpdatesBehaviour, WhatDoesNotFitTheInventoryIsRefusedAtCreation) {
  const Inventory inventory = OptimizerInventory();
  const ParameterGroups groups = {settings_.groups(1), settings_.of_tensor};
  const auto create = [&](const ParameterGroups& of, const std::vector<int64_t>& missed,
                          const OptimizerConfig& rule = kTestAdamW) {
    return TensorUpdates::Create(rule, inventory, of, missed).status();
  };
  EXPECT_TRUE(create(groups, {}).ok());
  ParameterGroups other = groups;
  other.of_tensor.pop_back();
  ExpectMisuse(create(other, {}), "given for 9 tensors, and the inventory has 10");
  other = groups;
  other.of_tensor[3] = 4;
  ExpectMisuse(create(other, {}), "tensor 'layers.0.down' is of parameter group 4");
  ExpectMisuse(create(groups, {1, 2}), "given for 2 tensors");
  ExpectMisuse(create(groups, std::vector<int64_t>(10, -1)), "cannot have missed -1 updates");
  ExpectMisuse(create(groups, {}, {.kind = OptimizerKind::kSgd}), "momentum (beta1) of 0.8");
  EXPECT_TRUE(create(groups, {}, {.kind = OptimizerKind::kSgd, .momentum = 0.9}).ok());

  // And a step that is none: it was missed by more updates than there were.
  mixed_.missed_updates.assign(10, 1);
  const auto run = Start(mixed_);
  ASSERT_TRUE(run->Backward(1).ok());
  ExpectMisuse(run->optimizer().BeginUpdate(ScalarsOfStep(1, 1)), "has missed 1 updates");
}

// ---- The runs

TEST(TensorUpdates, RunsAreCutByTensorWhereOneIsLeftAloneOrHasMissedOtherUpdates) {
  const Inventory inventory = OptimizerInventory();
  // "up" and "down" of a block are neighbours of one group, as are "norm" and "bias".
  auto made = TensorUpdates::Create(kTestAdamW, inventory, DecayGroups(inventory, 0.1), {});
  ASSERT_TRUE(made.ok()) << made.status();
  TensorUpdates& updates = **made;
  const auto num_runs = [&](int layer) { return updates.RunsOf(layer).size(); };
  updates.BeginUpdate();
  EXPECT_EQ(num_runs(1), 2u);
  updates.Hand(1, std::vector<int>{2});
  updates.BeginUpdate();
  EXPECT_EQ(num_runs(1), 4u);
  EXPECT_EQ(num_runs(2), 2u);
  updates.BeginUpdate();
  EXPECT_EQ(num_runs(1), 4u);  // they differ in what they have missed
  const GroupRun* run = &updates.RunsOf(1)[0];
  EXPECT_EQ(updates.ScalarsOf({.step = 3}, *run).step, run->tensor == 2 ? 2 : 3);
  updates.Hand(1, std::vector<int>{1, 3, 4});
  updates.BeginUpdate();
  EXPECT_EQ(num_runs(1), 4u);
  updates.BeginUpdate();
  EXPECT_EQ(num_runs(1), 2u);  // all have missed one
  EXPECT_EQ(updates.ScalarsOf({.step = 5}, updates.RunsOf(1)[0]).step, 4);
}

}  // namespace
}  // namespace forebay
