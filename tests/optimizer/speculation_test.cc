// Layers that are updated before the norm of all gradients is known: the result is that of AdamW in
// memory, whether what was hoped for came true or not.
#include <limits>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/named_optimizers.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/optimizer/write_gate.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

class SpeculationTest : public testing::Test {
 protected:
  // With two I/O threads, or enough for writes that a gate holds.
  void Open(OffloadedRun::Options options = {}, WriteGate* gate = nullptr) {
    options.speculative = true;
    options.weights = Tiers::kNvme;
    if (options.gradients == Tiers::kHost) options.gradients = Tiers::kNvme;
    options.tile_elems = 2048;
    options.num_threads = 2;
    options.num_io_threads = gate == nullptr ? 2 : 16;
    auto run = OffloadedRun::Start(options, folder_.path(), gate);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
  }
  void Commit(int64_t step) {
    ASSERT_TRUE(run_->ApplyAndCommit(step).ok());
    ExpectStoreHolds(run_->store(), expected_);
  }
  // Bytes of weights and state, of tiles in the order in which gradients come.
  int64_t BytesOfFirst(int num_tiles) const {
    const TileMap& tiles = run_->store().tiles();
    int64_t bytes = 0;
    for (int layer = run_->num_layers() - 1; layer >= 0; --layer) {
      for (int i = tiles.first_tile(layer); i < tiles.first_tile(layer + 1) && num_tiles > 0;
           ++i, --num_tiles) {
        const Tile& tile = tiles.tiles()[static_cast<size_t>(i)];
        bytes += tiles.WeightBytes(tile) + tiles.StateBytes(tile);
      }
    }
    return bytes;
  }
  int64_t SubmittedReads() const { return run_->store().engine().stats().submitted_read_bytes; }
  // Their gradients are clipped in every one (ScalarsOfStep).
  void DoFourSteps() {
    for (int64_t step = 1; step <= 4; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      const auto norm = run_->SpeculativeUpdate(step, kNoLimit);
      ASSERT_TRUE(norm.ok()) << norm.status();
      ASSERT_GT(*norm, 1);
      EXPECT_EQ(*norm, expected_.Step(step));
      ASSERT_NO_FATAL_FAILURE(Commit(step));
    }
  }

  const TemporaryFolder folder_;
  WriteGate gate_;
  InMemoryOptimizer expected_{Layout::kBf16, DType::kBF16};
  std::unique_ptr<OffloadedRun> run_;
};

TEST_F(SpeculationTest, StepsThatAreClippedEndAsWithHeldGradients) {
  Open();
  DoFourSteps();
}

// Undoes on a device, too, what was applied there.
TEST_F(SpeculationTest, StepsThatAreClippedEndAsWithHeldGradientsOnADevice) {
  Open({.state = Tiers::kThree});
  DoFourSteps();
}

TEST_F(SpeculationTest, NothingMoreIsAppliedOnceTheNormSoFarIsTooLarge) {
  Open();
  const int64_t before = run_->optimizer().stats().updated_elems;
  ASSERT_TRUE(run_->store().BeginWriting().ok());
  ASSERT_TRUE(
      run_->optimizer().modes().BeginSpeculation(ScalarsOfStep(1, 0), /*most_norm=*/1e-3).ok());
  const auto stats = run_->Backward(1);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_FALSE(run_->optimizer().modes().SpeculationIsComplete());
  EXPECT_GT(stats->norm, 1e-3);
  // The first layer's gradient alone is above it.
  const TileMap& tiles = run_->store().tiles();
  EXPECT_EQ(run_->optimizer().stats().updated_elems - before, tiles.layer_elems(3));
  run_->optimizer().AbandonStep();
  ASSERT_TRUE(run_->Step(1).ok());
  expected_.Step(1);
  ExpectStoreHolds(run_->store(), expected_);
}

TEST_F(SpeculationTest, WithoutHopeGradientsCountInTheNormAlone) {
  Open();
  const int64_t written_bytes = run_->store().engine().stats().write_bytes;
  const auto stats = run_->Backward(1);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_FALSE(run_->optimizer().modes().SpeculationIsComplete());
  EXPECT_EQ(run_->store().engine().stats().write_bytes, written_bytes);
  run_->optimizer().AbandonStep();
  EXPECT_EQ(stats->norm, expected_.Step(1));
  const auto again = run_->SpeculativeBackward(ScalarsOfStep(1, stats->norm), kNoLimit);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(run_->optimizer().modes().SpeculationIsComplete());
  EXPECT_EQ(again->norm, stats->norm);
  ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  ASSERT_NO_FATAL_FAILURE(Commit(1));
}

// The backward pass hides their reads, as far as there are buffers.
TEST_F(SpeculationTest, WhatIsUpdatedLaterIsReadWhileTheLastLayerIsWaitedFor) {
  Open({.gradients = Tiers::kMixed, .num_staging_tiles = 64});  // layers 2 and 0 are speculative
  const TileMap& tiles = run_->store().tiles();
  ASSERT_LE(tiles.num_tiles(), 64);
  int64_t to_read_bytes = 0;
  for (const Tile& tile : tiles.tiles()) {
    to_read_bytes += tiles.StateBytes(tile) + (tile.layer % 2 == 0 ? tiles.WeightBytes(tile) : 0);
  }
  const auto read_bytes = [&] { return run_->store().engine().stats().submitted_read_bytes; };
  const int64_t before = read_bytes();
  ASSERT_TRUE(run_->store().BeginWriting().ok());
  const double norm = expected_.Step(1);
  ASSERT_TRUE(run_->optimizer().modes().BeginSpeculation(ScalarsOfStep(1, norm), kNoLimit).ok());
  for (const int layer : {3, 2, 1}) ASSERT_TRUE(run_->Hand(layer, 1).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (read_bytes() - before < to_read_bytes && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(read_bytes() - before, to_read_bytes);
  ASSERT_TRUE(run_->Hand(0, 1).ok());
  const auto stats = run_->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(1, norm)).ok());
  Commit(1);
}

// Nobody hands anything over meanwhile.
TEST_F(SpeculationTest, ReadsGoOnWhenWritesEndWhoseBuffersTheyTake) {
  Open({.num_staging_tiles = 4}, &gate_);
  const int64_t before = SubmittedReads();
  ASSERT_TRUE(run_->store().BeginWriting().ok());
  const double norm = expected_.Step(1);
  gate_.Open(false);
  ASSERT_TRUE(run_->optimizer().modes().BeginSpeculation(ScalarsOfStep(1, norm), kNoLimit).ok());
  ASSERT_EQ(run_->store().tiles().first_tile(4) - run_->store().tiles().first_tile(3), 1);
  ASSERT_TRUE(run_->Hand(3, 1).ok());
  while (run_->optimizer().stats().updated_elems == 0) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(SubmittedReads() - before, BytesOfFirst(4));
  gate_.Open(true);
  EXPECT_EQ(AwaitSubmittedReads(run_->store().engine(), before + BytesOfFirst(5)) - before,
            BytesOfFirst(5));
  for (const int layer : {2, 1, 0}) ASSERT_TRUE(run_->Hand(layer, 1).ok());
  ASSERT_TRUE(run_->optimizer().FinishBackward().ok());
  ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(1, norm)).ok());
  Commit(1);
}

// The forward pass hides them, of as many tiles as there are buffers. None is read twice.
TEST_F(SpeculationTest, WhereAllIsSpeculativeTheFirstReadsComeWhenItIsExpected) {
  Open({.num_staging_tiles = 6});
  for (int64_t step = 1; step <= 3; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const int64_t before = SubmittedReads();
    run_->optimizer().modes().ExpectSpeculation();
    EXPECT_EQ(AwaitSubmittedReads(run_->store().engine(), before + BytesOfFirst(6)) - before,
              BytesOfFirst(6));
    const double norm = expected_.Step(step);
    const auto stats = run_->SpeculativeBackward(ScalarsOfStep(step, norm), kNoLimit);
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(SubmittedReads() - before, BytesOfFirst(run_->store().tiles().num_tiles()));
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(step, norm)).ok());
    ASSERT_NO_FATAL_FAILURE(Commit(step));
  }
}

TEST_F(SpeculationTest, AStepThatIsAbandonedBeforeItBeginsLeavesNothingThatWasReadForIt) {
  Open();
  run_->optimizer().modes().ExpectSpeculation();
  run_->optimizer().AbandonStep();
  ASSERT_TRUE(run_->Step(1).ok());  // other state than what was read
  expected_.Step(1);
  run_->optimizer().modes().ExpectSpeculation();
  ASSERT_TRUE(run_->optimizer().AwaitAllWrites().ok());
  ASSERT_TRUE(run_->Step(2).ok());
  expected_.Step(2);
  ExpectStoreHolds(run_->store(), expected_);
}

// The loss hides their reads: nothing else reads then.
TEST_F(SpeculationTest, WhatIsSpeculativeIsReadOnceTheUpdatesBeforeAreApplied) {
  Open({.gradients = Tiers::kMixed, .num_staging_tiles = 64});  // layers 2 and 0 are speculative
  const auto norm = run_->SpeculativeUpdate(1, kNoLimit);
  ASSERT_TRUE(norm.ok()) << norm.status();
  const TileMap& tiles = run_->store().tiles();
  int64_t weight_bytes = 0, state_bytes = 0;
  for (const Tile& tile : tiles.tiles()) {
    weight_bytes += tiles.WeightBytes(tile);
    state_bytes += tile.layer % 2 == 0 ? tiles.StateBytes(tile) : 0;
  }
  const int64_t to_read_bytes = weight_bytes + state_bytes;
  const auto read_bytes = [&] { return run_->store().engine().stats().submitted_read_bytes; };
  const int64_t before = read_bytes();
  run_->optimizer().modes().ExpectSpeculation();
  ASSERT_TRUE(run_->ApplyAndCommit(1).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (read_bytes() - before < to_read_bytes && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(read_bytes() - before, to_read_bytes);
  EXPECT_EQ(*norm, expected_.Step(1));
  ExpectStoreHolds(run_->store(), expected_);
  const auto next = run_->SpeculativeUpdate(2, kNoLimit);
  ASSERT_TRUE(next.ok()) << next.status();
  expected_.Step(2);
  // With no step behind it no state is read.
  const int64_t at_the_end = read_bytes();
  ASSERT_TRUE(run_->ApplyAndCommit(2).ok());
  EXPECT_LE(read_bytes() - at_the_end, weight_bytes);
  ExpectStoreHolds(run_->store(), expected_);
}

// Its state is read beside the speculative layers' updates, its gradient not before it is written.
TEST_F(SpeculationTest, ASpilledGradientOfTheFirstLayerIsReadWhenItIsThere) {
  Open({.num_staging_tiles = 64, .first_is_lazy = true});
  DoFourSteps();
}

// What was hoped for is right here, so one backward pass is enough.
TEST_F(SpeculationTest, AnAbandonedStepLeavesTheCommittedOne) {
  Open();
  ASSERT_TRUE(run_->Step(1).ok());
  expected_.Step(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(run_->optimizer().modes().BeginSpeculation(ScalarsOfStep(2, 3.0), kNoLimit).ok());
    // Stopped after some layers.
    for (int layer = run_->num_layers() - 1; layer > i; --layer) {
      const std::vector<float> gradient = GradientOf(run_->store().inventory(), layer, 2);
      ASSERT_TRUE(run_->optimizer().Hand(Fp32Gradient(layer, gradient), run_->pool()).ok());
    }
    run_->optimizer().AbandonStep();
    ASSERT_NO_FATAL_FAILURE(ExpectStoreHolds(run_->store(), expected_));
  }
  ASSERT_TRUE(run_->Step(2).ok());
  expected_.Step(2);
  ExpectStoreHolds(run_->store(), expected_);
}

TEST_F(SpeculationTest, TheNextForwardPassSeesWhatWasApplied) {
  Open();
  const auto swapper = run_->MakeSwapper();
  ASSERT_TRUE(swapper.ok()) << swapper.status();
  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    (*swapper)->Expect(std::vector<int>{0, 1, 2, 3});
    (*swapper)->Expect(std::vector<int>{3, 2, 1, 0});
    for (const int layer : {0, 1, 2, 3, 3, 2, 1, 0}) {
      const auto weights = (*swapper)->Acquire(layer);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const auto expected =
          expected_.PlaneBytes(layer, 0, 0, expected_.inventory().layers()[layer].num_elems);
      ASSERT_TRUE(std::ranges::equal(*weights, expected)) << "layer " << layer;
      (*swapper)->Release(layer);
    }
    ASSERT_TRUE(run_->SpeculativeUpdate(step, kNoLimit).ok());
    expected_.Step(step);
    ASSERT_TRUE(run_->optimizer().AwaitAllWrites().ok());
    (*swapper)->ForgetUpdatedOutside();
    // Committed in the middle of the next step, or at once.
    ASSERT_NO_FATAL_FAILURE(Commit(step));
  }
}

// Where there is room for the gradients of some layers, those are held: updates of both kinds in
// one step.
TEST_F(SpeculationTest, LayersOfWhichGradientsAreHeldAreUpdatedWhenTheNormIsKnown) {
  OffloadedRun::Options options;
  options.gradients = Tiers::kMixed;
  Open(options);
  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    ASSERT_TRUE(run_->SpeculativeUpdate(step, kNoLimit).ok());
    expected_.Step(step);
    for (int layer = 0; layer < run_->num_layers(); ++layer) {
      EXPECT_EQ(run_->optimizer().UpdateIsDue(layer), layer % 2 == 1) << layer;
    }
    ASSERT_NO_FATAL_FAILURE(Commit(step));
  }
}

// The next step is abandoned before the updates that are still due were applied: they stay.
TEST_F(SpeculationTest, AbandoningAStepKeepsBothKindsOfUpdatesOfTheStepBefore) {
  OffloadedRun::Options options;
  options.gradients = Tiers::kMixed;
  Open(options);
  ASSERT_TRUE(run_->SpeculativeUpdate(1, kNoLimit).ok());
  expected_.Step(1);
  run_->optimizer().AbandonStep();
  run_->optimizer().modes().ExpectSpeculation();
  run_->optimizer().AbandonStep();
  ASSERT_NO_FATAL_FAILURE(Commit(1));
}

TEST_F(SpeculationTest, EveryLayoutAndOptimizerEndsAsInMemory) {
  std::vector<OffloadedRun::Options> all;
  for (const Layout layout : {Layout::kFp32, Layout::kBf16Moments, Layout::kInt8Moments}) {
    all.push_back({.layout = layout});
  }
  // Without moments there is no state at all in the layout fp32.
  all.push_back({.layout = Layout::kFp16, .gradient_dtype = DType::kF16});
  for (const NamedOptimizer& optimizer : kOptimizers) {
    all.push_back({.layout = Layout::kFp32, .rule = optimizer.config});
    all.push_back({.rule = optimizer.config});
  }
  for (OffloadedRun::Options& options : all) {
    SCOPED_TRACE(testing::Message()
                 << "layout " << static_cast<int>(options.layout) << ", optimizer "
                 << static_cast<int>(options.rule.kind) << ", momentum " << options.rule.momentum);
    const TemporaryFolder folder;
    options.speculative = true;
    options.gradients = Tiers::kNvme;
    options.tile_elems = 2048;
    const auto run = OffloadedRun::Start(options, folder.path());
    ASSERT_TRUE(run.ok()) << run.status();
    InMemoryOptimizer expected(options.layout, options.gradient_dtype, options.rule);
    for (int64_t step = 1; step <= 2; ++step) {
      const absl::Status status = (*run)->Step(step).status();
      ASSERT_TRUE(status.ok()) << status;
      expected.Step(step);
    }
    ExpectStoreHolds((*run)->store(), expected);
  }
}

TEST_F(SpeculationTest, WhatIsNotCompleteIsNotTakenForAStep) {
  Open();
  const auto stats = run_->SpeculativeBackward(ScalarsOfStep(1, 0), /*most_norm=*/1e-3);
  ASSERT_TRUE(stats.ok() && !run_->optimizer().modes().SpeculationIsComplete());
  const absl::Status status = run_->optimizer().BeginUpdate(ScalarsOfStep(1, 0));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("speculation that is not complete"));
  run_->optimizer().AbandonStep();
  ASSERT_TRUE(run_->Step(1).ok());
  expected_.Step(1);
  ExpectStoreHolds(run_->store(), expected_);
}

}  // namespace
}  // namespace forebay
