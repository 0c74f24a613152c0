// The optimizer under the real swapper: updates are applied on the swapper's thread while the
// layers come in for the next forward pass, and the step before is committed in the middle of the
// next.
#include <cstring>
#include <string>
#include <vector>

#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/optimizer/write_gate.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kNumWindowSteps = 4;

struct TierVariant {
  std::string name;
  Tiers weights;
  Tiers state;
  Tiers gradients;
};

class OffloadedOptimizerSwapperTest : public testing::TestWithParam<TierVariant> {
 protected:
  void SetUp() override {
    OffloadedRun::Options options;
    options.weights = GetParam().weights;
    options.state = GetParam().state;
    options.gradients = GetParam().gradients;
    options.tile_elems = 2048;
    options.num_threads = 2;
    options.num_io_threads = 2;
    auto run = OffloadedRun::Start(options, folder_.path());
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
    auto swapper = run_->MakeSwapper();
    ASSERT_TRUE(swapper.ok()) << swapper.status();
    swapper_ = *std::move(swapper);
  }

  // Borrows each layer in turn and checks that its weights are those of `expected_`.
  void Forward() {
    for (int layer = 0; layer < run_->num_layers(); ++layer) {
      const auto weights = swapper_->Acquire(layer);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const auto expected =
          expected_.PlaneBytes(layer, 0, 0, expected_.inventory().layers()[layer].num_elems);
      ASSERT_TRUE(std::ranges::equal(*weights, expected)) << "layer " << layer;
      swapper_->Release(layer);
    }
  }

  void Backward(int64_t step) {
    for (int layer = run_->num_layers() - 1; layer >= 0; --layer) {
      ASSERT_TRUE(swapper_->Acquire(layer).ok());
      const std::vector<float> gradient = GradientOf(run_->store().inventory(), layer, step);
      ASSERT_TRUE(run_->optimizer().Hand(Fp32Gradient(layer, gradient), run_->pool()).ok());
      swapper_->Release(layer);
    }
  }

  void Commit(int64_t step) {
    ASSERT_TRUE(run_->optimizer().AwaitAllWrites().ok());
    ASSERT_TRUE(run_->store().Commit({step, Json::object()}).ok());
  }

  const TemporaryFolder folder_;
  InMemoryOptimizer expected_{Layout::kBf16, DType::kBF16};
  std::unique_ptr<OffloadedRun> run_;
  std::unique_ptr<Swapper> swapper_;
};

TEST_P(OffloadedOptimizerSwapperTest, EveryForwardPassSeesTheWeightsOfAdamWInMemory) {
  for (int64_t step = 1; step <= kNumWindowSteps; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    swapper_->Expect(std::vector<int>{0, 1, 2, 3});
    swapper_->Expect(std::vector<int>{3, 2, 1, 0});
    ASSERT_NO_FATAL_FAILURE(Forward());
    if (step > 1) {
      ASSERT_NO_FATAL_FAILURE(Commit(step - 1));
    }
    ASSERT_NO_FATAL_FAILURE(Backward(step));
    const auto stats = run_->optimizer().FinishBackward();
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(step, stats->norm)).ok());
    expected_.Step(step);
  }
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  ASSERT_NO_FATAL_FAILURE(Commit(kNumWindowSteps));
  ExpectStoreHolds(run_->store(), expected_);
}

// Commits of several steps: what lives in RAM is not written in between, and all of it in the end,
// whether the last step writes it or somebody asks for it.
TEST_P(OffloadedOptimizerSwapperTest, WhatLivesInMemoryIsWrittenForACommitAlone) {
  const TileMap& tiles = run_->store().tiles();
  int64_t resident_bytes = 0;
  for (int layer = 0; layer < run_->num_layers(); ++layer) {
    if (run_->placement().weights[layer] == Tier::kHost) {
      resident_bytes += LayerWeightBytes(tiles, layer);
    }
  }
  for (int tile = 0; tile < tiles.num_tiles(); ++tile) {
    if (run_->placement().state[tile] != Tier::kNvme) {
      resident_bytes += tiles.StateBytes(tiles.tiles()[tile]);
    }
  }
  std::vector<int64_t> written_bytes;  // by the update of each step
  for (int64_t step = 1; step <= kNumWindowSteps + 1; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const int64_t before = run_->store().engine().stats().write_bytes;
    swapper_->Expect(std::vector<int>{0, 1, 2, 3});
    swapper_->Expect(std::vector<int>{3, 2, 1, 0});
    ASSERT_NO_FATAL_FAILURE(Forward());
    ASSERT_TRUE(run_->optimizer().AwaitAllWrites().ok());
    written_bytes.push_back(run_->store().engine().stats().write_bytes - before);
    if (step == kNumWindowSteps) {
      ASSERT_TRUE(run_->store().Commit({step - 1, Json::object()}).ok());
      ExpectStoreHolds(run_->store(), expected_);
    }
    ASSERT_NO_FATAL_FAILURE(Backward(step));
    const auto stats = run_->optimizer().FinishBackward();
    ASSERT_TRUE(stats.ok()) << stats.status();
    ASSERT_TRUE(run_->store().BeginWriting().ok());
    ASSERT_TRUE(run_->optimizer()
                    .BeginUpdate(ScalarsOfStep(step, stats->norm), step == kNumWindowSteps - 1
                                                                       ? ResidentWrites::kNow
                                                                       : ResidentWrites::kDeferred)
                    .ok());
    expected_.Step(step);
  }
  EXPECT_EQ(written_bytes[1], written_bytes[2]);
  EXPECT_EQ(written_bytes[kNumWindowSteps - 1], written_bytes[1] + resident_bytes);
  EXPECT_EQ(written_bytes[kNumWindowSteps], written_bytes[1]);
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  ASSERT_TRUE(run_->optimizer().WriteDeferredState().ok());
  ASSERT_NO_FATAL_FAILURE(Commit(kNumWindowSteps + 1));
  ExpectStoreHolds(run_->store(), expected_);
}

TEST_P(OffloadedOptimizerSwapperTest, AStopInTheForwardPassKeepsTheStepBeforeWhole) {
  swapper_->Expect(std::vector<int>{3, 2, 1, 0});
  ASSERT_NO_FATAL_FAILURE(Backward(1));
  const auto stats = run_->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_TRUE(run_->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
  expected_.Step(1);

  swapper_->Expect(std::vector<int>{0, 1, 2, 3});
  ASSERT_TRUE(swapper_->Acquire(0).ok());
  swapper_->Release(0);
  swapper_->CancelExpected();
  run_->optimizer().AbandonStep();
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  ASSERT_NO_FATAL_FAILURE(Commit(1));
  ExpectStoreHolds(run_->store(), expected_);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, OffloadedOptimizerSwapperTest,
    testing::Values(TierVariant{"AllOnNvme", Tiers::kNvme, Tiers::kNvme, Tiers::kNvme},
                    TierVariant{"AllInMemory", Tiers::kHost, Tiers::kHost, Tiers::kHost},
                    TierVariant{"Mixed", Tiers::kMixed, Tiers::kMixed, Tiers::kMixed},
                    TierVariant{"ThreePlaces", Tiers::kMixed, Tiers::kThree, Tiers::kMixed},
                    TierVariant{"StateOnNvme", Tiers::kMixed, Tiers::kNvme, Tiers::kHost}),
    [](const testing::TestParamInfo<TierVariant>& variant) { return variant.param.name; });

// The window's thread reads further ahead while it has nothing else to do.
TEST(OffloadedOptimizerWindowTest, ReadsGoOnWhenWritesEndWhoseBuffersTheyTake) {
  const TemporaryFolder folder;
  WriteGate gate;
  InMemoryOptimizer expected{Layout::kBf16, DType::kBF16};
  constexpr int kNumStagingTiles = 11;
  const auto run = OffloadedRun::Start({.tile_elems = 2048,
                                        .num_threads = 2,
                                        .num_io_threads = 32,
                                        .num_staging_tiles = kNumStagingTiles},
                                       folder.path(), &gate);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto swapper = (*run)->MakeSwapper();
  ASSERT_TRUE(swapper.ok()) << swapper.status();
  const TileMap& tiles = (*run)->store().tiles();
  const Engine& engine = (*run)->store().engine();
  const auto norm = (*run)->Backward(1);
  ASSERT_TRUE(norm.ok()) << norm.status();
  expected.Step(1);
  // FinishBackward has read for it into the first buffers.
  const int64_t before = engine.stats().submitted_read_bytes;
  const auto state_bytes = [&](int first_tile, int end_tile) {
    int64_t bytes = 0;
    for (int i = first_tile; i < end_tile; ++i) bytes += tiles.StateBytes(tiles.tiles()[i]);
    return bytes;
  };
  int64_t weight_bytes = 0;  // of the first layer
  for (int i = 0; i < tiles.first_tile(1); ++i) weight_bytes += tiles.WeightBytes(tiles.tiles()[i]);
  ASSERT_LT(tiles.first_tile(1), kNumStagingTiles);
  ASSERT_GT(tiles.num_tiles(), kNumStagingTiles);
  gate.Open(false);
  ASSERT_TRUE((*run)->store().BeginWriting().ok());
  ASSERT_TRUE((*run)->optimizer().BeginUpdate(ScalarsOfStep(1, norm->norm)).ok());
  (*swapper)->Expect(std::vector<int>{0});
  ASSERT_TRUE((*swapper)->Acquire(0).ok());
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(engine.stats().submitted_read_bytes - before, weight_bytes);
  gate.Open(true);
  const int64_t to_read_bytes = weight_bytes + state_bytes(kNumStagingTiles, tiles.num_tiles());
  EXPECT_EQ(AwaitSubmittedReads(engine, before + to_read_bytes) - before, to_read_bytes);
  (*swapper)->Release(0);
  ASSERT_TRUE((*swapper)->ApplyAllUpdates().ok());
  ASSERT_TRUE((*run)->Commit(1).ok());
  ExpectStoreHolds((*run)->store(), expected);
}

}  // namespace
}  // namespace forebay
