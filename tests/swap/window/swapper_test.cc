#include "forebay/swap/window/swapper.h"

#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/window/swapper_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST_F(SwapperTest, LendsTheWeightsOfEveryLayerInTheAnnouncedOrder) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper().ok());
  EXPECT_EQ(Pass(0, true), absl::OkStatus());
}

TEST_F(SwapperTest, ChargesWhatItAnnounces) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(4, 2).ok());
  EXPECT_EQ(budget_.used_bytes(), Swapper::WindowBytes(Options(4, 2), store_->tiles()));
  EXPECT_EQ(budget_.used_bytes(), 4 * 6144 * 4 + 2 * 20'480 * 4);
}

TEST_F(SwapperTest, MakesNoLargeBuffersWhereNoLayerNeedsThem) {
  MakeStore();
  WindowOptions options = Options(2, 5);
  options.first_block_layer = 0;
  EXPECT_EQ(Swapper::WindowBytes(options, store_->tiles()), 2 * 20'480 * 4);
}

TEST_F(SwapperTest, ALayerThatStillLiesInABufferIsNotReadAgain) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(3).ok());
  ASSERT_TRUE(ExpectAndUse({1, 2, 3}, 0).ok());
  ASSERT_TRUE(ExpectAndUse({3, 2, 1, 1}, 0).ok());
  EXPECT_EQ(swapper_->stats().weight_reads, 3);
  EXPECT_EQ(swapper_->stats().weight_hits, 4);
}

TEST_F(SwapperTest, TheTurnOfTheZigzagIsReadOnce) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(3).ok());
  ASSERT_TRUE(ExpectAndUse({1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1}, 0).ok());
  EXPECT_EQ(swapper_->stats().weight_reads, 6 + 3);
  EXPECT_EQ(swapper_->stats().weight_hits, 3);
}

TEST_F(SwapperTest, AnUpdateReadsTheWeightsOnceAndTheForwardPassSeesItsResult) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  const int64_t bytes_before = engine_->stats().read_bytes;
  updater_->MakeAllDue();
  ASSERT_TRUE(ExpectAndUse({0, 1, 2, 3, 4, 5, 6, 7}, 1).ok());
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  EXPECT_EQ(swapper_->stats().weight_reads, kNumLayers);
  EXPECT_EQ(engine_->stats().read_bytes - bytes_before, store_->tiles().weight_area_bytes());
  EXPECT_EQ(engine_->stats().write_bytes, 2 * 12 * ModelInventory(true).num_padded_elems() +
                                              2 * kIoAlignBytes +
                                              2 * TileSeals::TableBytes(store_->tiles(), 0));
  for (int layer = 0; layer < kNumLayers; ++layer) EXPECT_EQ(updater_->num_updates(layer), 1);
}

TEST_F(SwapperTest, ALayerReadAfterItsWriteBackHasTheNewWeights) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->MakeAllDue();
  ASSERT_TRUE(ExpectAndUse({1, 2, 3, 1, 2, 3}, 1).ok());
  EXPECT_EQ(updater_->num_updates(1), 1);
}

TEST_F(SwapperTest, ApplyAllUpdatesReachesLayersThatNobodyAnnounced) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->MakeAllDue();
  ASSERT_TRUE(ExpectAndUse({1, 2}, 1).ok());
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  EXPECT_FALSE(updater_->anything_in_write_back());
  ASSERT_TRUE(store_->Commit({1, Json::object()}).ok());
  EXPECT_TRUE(StoreHolds(1));
}

TEST_F(SwapperTest, ApplyAllUpdatesLeavesAnnouncedAccessesInPlace) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->MakeAllDue();
  const std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
  swapper_->Expect(order);
  ASSERT_TRUE(Use(0, 1).ok());
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  ASSERT_TRUE(store_->Commit({1, Json::object()}).ok());
  for (int layer = 1; layer < kNumLayers; ++layer) ASSERT_TRUE(Use(layer, 1).ok());
}

TEST_F(SwapperTest, ApplyAllUpdatesUpdatesLayersInBuffersBeforeOthersPushThemOut) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(3).ok());
  ASSERT_TRUE(ExpectAndUse({1, 2, 3, 4, 5, 6}, 0).ok());
  updater_->MakeAllDue();
  ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
  EXPECT_EQ(swapper_->stats().weight_reads, 6 + 5) << "4, 5 and 6 lie in buffers";
}

TEST_F(SwapperTest, ApplyAllUpdatesWithoutAnUpdaterOrDueUpdatesDoesNothing) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper().ok());
  EXPECT_EQ(swapper_->ApplyAllUpdates(), absl::OkStatus());
  EXPECT_EQ(swapper_->stats().weight_reads, 0);
  swapper_.reset();  // its thread may be about to ask the updater whether to read further
  updater_.reset();
  ASSERT_TRUE(MakeSwapper().ok());
  EXPECT_EQ(swapper_->ApplyAllUpdates(), absl::OkStatus());
}

TEST_F(SwapperTest, ResidentLayersAreReadOnceAtTheStartAndUpdatedInPlace) {
  MakeStore();
  placement_.weights[0] = Tier::kHost;
  placement_.weights[3] = Tier::kHost;
  ASSERT_TRUE(MakeSwapper(2).ok());
  EXPECT_EQ(budget_.used_bytes(),
            Swapper::WindowBytes(Options(2, 1), store_->tiles()) + (20'480 + 6144) * 4);
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(ExpectAndUse({0, 3, 3, 0}, step).ok());
    updater_->MakeAllDue();
    ASSERT_TRUE(ExpectAndUse({0, 3}, step + 1).ok());
    ASSERT_TRUE(swapper_->ApplyAllUpdates().ok());
    ASSERT_TRUE(store_->Commit({step + 1, Json::object()}).ok());
  }
  EXPECT_EQ(swapper_->stats().weight_hits, 3 * 6);
  swapper_.reset();
  EXPECT_TRUE(StoreHolds(3));
}

TEST_F(SwapperTest, LargeLayersAlternateInOneLargeBuffer) {
  MakeStore(/*tied=*/false);
  ASSERT_TRUE(MakeSwapper(2, 1).ok());
  EXPECT_EQ(Train(0, 3, /*tied=*/false), absl::OkStatus());
  EXPECT_TRUE(StoreHolds(3));
}

TEST_F(SwapperTest, CancelExpectedForgetsWhatWasNotAcquired) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(3).ok());
  swapper_->Expect(std::vector<int>{1, 2, 3, 4, 5});
  ASSERT_TRUE(Use(1, 0).ok());
  swapper_->CancelExpected();
  EXPECT_EQ(ExpectAndUse({6, 5, 4, 3, 2, 1, 0}, 0), absl::OkStatus());
}

TEST_F(SwapperTest, CancelExpectedKeepsLeasesValid) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  swapper_->Expect(std::vector<int>{1, 2, 3});
  const auto bytes = swapper_->Acquire(1);
  ASSERT_TRUE(bytes.ok());
  swapper_->CancelExpected();
  ASSERT_TRUE(ExpectAndUse({4, 5, 6}, 0).ok());
  EXPECT_TRUE(AllAre(*bytes, Expected(1, 0)));
  swapper_->Release(1);
}

TEST_F(SwapperTest, EndsCleanlyInEveryState) {
  MakeStore();
  for (int state = 0; state < 4; ++state) {
    ASSERT_TRUE(MakeSwapper(2).ok());
    if (state >= 1) swapper_->Expect(std::vector<int>{0, 1, 2, 3, 4});
    if (state >= 2) {
      ASSERT_TRUE(swapper_->Acquire(0).ok());
    }
    if (state >= 3) swapper_->Release(0);
    swapper_.reset();
    EXPECT_EQ(budget_.used_bytes(), 0);
  }
}

TEST_F(SwapperTest, EndingWaitsForWriteBacks) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->MakeAllDue();
  ASSERT_TRUE(ExpectAndUse({0, 1, 2}, 1).ok());
  swapper_.reset();
  EXPECT_FALSE(updater_->anything_in_write_back());
}

TEST_F(SwapperTest, TheSameWeightsWhateverTheWindowAndThePlacement) {
  MakeStore();
  const CounterRng rng(11);
  for (uint64_t trial = 0; trial < 12; ++trial) {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      placement_.weights[layer] =
          rng.Below(100 * trial + layer, 3) == 0 ? Tier::kHost : Tier::kNvme;
    }
    const auto num_block_buffers = static_cast<int>(2 + rng.Below(100 * trial + 50, 6));
    const auto num_large_buffers = static_cast<int>(1 + rng.Below(100 * trial + 51, 2));
    SCOPED_TRACE(testing::Message() << "trial " << trial << ", blocks " << num_block_buffers);
    FaultPlan plan;
    plan.max_delay_us = 300;
    plan.max_transfer_bytes = 9000;
    plan.seed = trial;
    ASSERT_TRUE(Reopen(plan).ok());
    ASSERT_TRUE(MakeSwapper(num_block_buffers, num_large_buffers).ok());
    // Every trial starts where the one before ended.
    const int64_t start = 3 * static_cast<int64_t>(trial);
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(Pass(start + step, true), absl::OkStatus());
      updater_->MakeAllDue();
      if (rng.Below(100 * trial + 60 + step, 2) == 0) {
        ASSERT_EQ(ExpectAndUse({0, 1, 2, 3}, start + step + 1), absl::OkStatus());
      }
      ASSERT_EQ(swapper_->ApplyAllUpdates(), absl::OkStatus());
      ASSERT_EQ(store_->Commit({start + step + 1, Json::object()}), absl::OkStatus());
    }
  }
}

TEST_F(SwapperTest, AFailedReadIsReportedByAcquireWithTheLayersName) {
  MakeStore();
  FaultPlan plan;
  plan.fail_call = 8;  // behind both commit records, both tables, and the records written again
  ASSERT_TRUE(Reopen(plan).ok());
  ASSERT_TRUE(MakeSwapper(2).ok());
  const absl::Status status = ExpectAndUse({3, 4}, 0);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("reading the weights of 'layers."));
  EXPECT_THAT(MessageOf(status), HasSubstr("weights.fbs"));
  EXPECT_EQ(swapper_->ApplyAllUpdates(), status) << "the first error stays";
}

TEST_F(SwapperTest, AFailedUpdateIsReportedAndItsWritesAreAwaited) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->fail_updates = true;
  updater_->MakeDue(1);
  const absl::Status status = ExpectAndUse({1}, 1);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("updating 'layers.0': no state"));
  swapper_.reset();
  EXPECT_FALSE(updater_->anything_in_write_back());
}

TEST_F(SwapperTest, AnErrorAtAnyCallIsCleanAndLeavesAWholeStep) {
  MakeStore();
  constexpr int kNumSteps = 2;
  placement_.weights[2] = Tier::kHost;
  int64_t committed = 0;
  for (const int num_buffers : {2, 3, 4}) {  // the more there are, the fewer reads
    ASSERT_TRUE(Reopen({}).ok());
    ASSERT_TRUE(MakeSwapper(num_buffers).ok());
    ASSERT_EQ(Train(committed, committed + kNumSteps, true), absl::OkStatus());
    committed += kNumSteps;
    const int64_t num_calls = disk_->num_calls();
    swapper_.reset();
    const Sample sample(9, 27);
    for (int64_t call = sample.first(); call < num_calls; call += sample.step()) {
      SCOPED_TRACE(testing::Message() << num_buffers << " buffers, call " << call);
      FaultPlan plan;
      plan.fail_call = call;
      plan.fail_all_after = call % 2 == 0;
      plan.error_number = call % 4 < 2 ? EIO : ENOSPC;
      absl::Status status = Reopen(plan);
      if (status.ok()) status = MakeSwapper(num_buffers);
      if (status.ok()) status = Train(committed, committed + kNumSteps, true);
      // Opening reads both records, then both copies of the checksums: such a read is tried again.
      const bool does_without = call < 4 && !plan.fail_all_after;
      EXPECT_EQ(ExitCodeOf(status), does_without ? ExitCode::kOk : ExitCode::kStorage) << status;
      ASSERT_TRUE(Reopen({}).ok());
      committed = store_->committed().step;
      ASSERT_TRUE(StoreHolds(committed));
    }
  }
}

// Each is refused and changes nothing: what was announced can still be acquired.
TEST_F(SwapperTest, AWrongAcquireIsRefusedAndChangesNothing) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  EXPECT_THAT(MessageOf(swapper_->Acquire(1).status()), HasSubstr("none is left"));
  swapper_->Expect(std::vector<int>{1, 2, 3});
  EXPECT_THAT(MessageOf(swapper_->Acquire(2).status()), HasSubstr("the next is 'layers.0'"));
  EXPECT_THAT(MessageOf(swapper_->Acquire(kNumLayers).status()), HasSubstr("no layer 8"));
  EXPECT_THAT(MessageOf(swapper_->Acquire(-1).status()), HasSubstr("no layer -1"));
  ASSERT_TRUE(swapper_->Acquire(1).ok());
  ASSERT_TRUE(swapper_->Acquire(2).ok());
  EXPECT_THAT(MessageOf(swapper_->Acquire(3).status()),
              HasSubstr("'layers.0', 'layers.1' are held. Release one"));
  swapper_->Release(1);
  ASSERT_TRUE(Use(3, 0).ok());
  swapper_->Release(2);
}

TEST_F(SwapperTest, AsManyLayersAreHeldAsThereAreBuffers) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(5).ok());
  const std::vector<int> layers = {0, 1, 2, 3, 4, 5, kHead};
  swapper_->Expect(layers);
  std::vector<std::span<const std::byte>> lent;
  for (const int layer : layers) {
    if (layer == kHead) swapper_->Release(5);  // it is as small as a block
    const auto bytes = swapper_->Acquire(layer);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    lent.push_back(*bytes);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == 5) continue;
    EXPECT_TRUE(AllAre(lent[i], Expected(layers[i], 0))) << layers[i];
    swapper_->Release(layers[i]);
  }
}

TEST_F(SwapperTest, TwoLargeLayersWithOneLargeBufferAreNoDeadlock) {
  MakeStore(/*tied=*/false);
  ASSERT_TRUE(MakeSwapper(2, 1).ok());
  swapper_->Expect(std::vector<int>{0, kHead});
  ASSERT_TRUE(swapper_->Acquire(0).ok());
  EXPECT_THAT(MessageOf(swapper_->Acquire(kHead).status()), HasSubstr("'embed' is held"));
  swapper_->Release(0);
  EXPECT_TRUE(Use(kHead, 0).ok());
}

}  // namespace
}  // namespace forebay
