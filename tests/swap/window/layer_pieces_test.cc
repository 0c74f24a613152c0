// Layers that the window lends in pieces.
#include "forebay/swap/window/layer_pieces.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/swap/window/step_transfers.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/window/swapper_fixture.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class LayerPiecesTest : public SwapperTest {
 protected:
  // Three pieces of the embedding, 20,480 elements; the last is shorter. The head is the same where
  // it is not tied.
  LayerPiecesTest() { piece_elems_ = 2 * kSmallTileElems; }
};

TEST_F(LayerPiecesTest, TwoPiecesAreInMemory) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  EXPECT_EQ(budget_.used_bytes(), (2 * 6144 + 2 * 8192) * 4);
  WindowOptions options = Options(2, 1);
  options.piece_elems = piece_elems_;
  EXPECT_EQ(Swapper::WindowBytes(options, store_->tiles()), budget_.used_bytes());
}

TEST_F(LayerPiecesTest, ComeInAnyOrder) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  swapper_->Expect(std::vector<int>{0, 1});
  ASSERT_TRUE(swapper_->Acquire(0).ok());
  WeightPieces* const pieces = swapper_->PiecesOf(0);
  ASSERT_NE(pieces, nullptr);
  EXPECT_EQ(pieces->num_pieces(), 3);
  for (const int piece : {2, 0, 1, 1, 2, 2, 0, 2, 1}) {
    const auto weights = pieces->Get(piece);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->first_elem, piece * piece_elems_);
    EXPECT_EQ(weights->data.size(), piece < 2 ? 8192 * 4 : 4096 * 4);
    EXPECT_TRUE(AllAre(weights->data, Expected(0, 0)));
  }
  swapper_->Release(0);
  ASSERT_TRUE(swapper_->Acquire(1).ok());
  EXPECT_EQ(swapper_->PiecesOf(1), nullptr);
  swapper_->Release(1);
}

TEST_F(LayerPiecesTest, LayersInRamAreWhole) {
  MakeStore();
  placement_.weights[0] = Tier::kHost;
  ASSERT_TRUE(MakeSwapper(2).ok());
  ASSERT_TRUE(ExpectAndUse({0}, 0).ok());
  swapper_->Expect(std::vector<int>{0});
  EXPECT_FALSE(swapper_->Acquire(0)->empty());
  EXPECT_EQ(swapper_->PiecesOf(0), nullptr);
  swapper_->Release(0);
}

TEST_F(LayerPiecesTest, AreUpdatedOnTheWayIn) {
  for (const bool tied : {true, false}) {
    swapper_.reset();
    updater_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
    MakeStore(tied);
    for (const int64_t piece_elems : {kSmallTileElems, 2 * kSmallTileElems}) {
      piece_elems_ = piece_elems;
      ASSERT_TRUE(MakeSwapper(2).ok());
      const int64_t first = store_->committed().step;
      ASSERT_EQ(Train(first, first + 3, tied), absl::OkStatus());
      EXPECT_FALSE(updater_->anything_in_write_back());
      EXPECT_TRUE(StoreHolds(first + 3));
    }
  }
}

TEST_F(LayerPiecesTest, UpdatesThatNobodyAnnouncedAreApplied) {
  MakeStore(/*tied=*/false);
  ASSERT_TRUE(MakeSwapper(2).ok());
  updater_->MakeAllDue();
  ASSERT_TRUE(ExpectAndUse({1}, 1).ok());
  ASSERT_TRUE(ApplyAndCommit(1).ok());
  EXPECT_TRUE(StoreHolds(1));
  ASSERT_TRUE(ExpectAndUse({0, kHead, 0}, 1).ok());
}

TEST_F(LayerPiecesTest, WhatWasAnnouncedMayBeCancelledBetweenPieces) {
  MakeStore(/*tied=*/false);
  ASSERT_TRUE(MakeSwapper(2).ok());
  for (int piece = 0; piece < 3; ++piece) {
    swapper_->Expect(std::vector<int>{0, kHead, 0});
    ASSERT_TRUE(swapper_->Acquire(0).ok());
    for (int i = 0; i <= piece; ++i) ASSERT_TRUE(swapper_->PiecesOf(0)->Get(i).ok());
    swapper_->Release(0);
    swapper_->CancelExpected();
    ASSERT_TRUE(ExpectAndUse({kHead, 0}, 0).ok());
  }
  swapper_->Expect(std::vector<int>{kHead});
  ASSERT_TRUE(swapper_->Acquire(kHead).ok());
  ASSERT_TRUE(swapper_->PiecesOf(kHead)->Get(0).ok());
  swapper_->Release(kHead);
  swapper_.reset();  // with a read under way
}

TEST_F(LayerPiecesTest, DisksOfAllKindsGiveTheSame) {
  MakeStore();
  for (uint64_t trial = 0; trial < 6; ++trial) {
    SCOPED_TRACE(trial);
    FaultPlan plan;
    plan.max_delay_us = 300;
    plan.max_transfer_bytes = 9000;
    plan.seed = trial;
    ASSERT_TRUE(Reopen(plan).ok());
    ASSERT_TRUE(MakeSwapper(2 + static_cast<int>(trial % 3)).ok());
    const int64_t first = store_->committed().step;
    ASSERT_EQ(Train(first, first + 3, /*tied=*/true), absl::OkStatus());
  }
}

TEST_F(LayerPiecesTest, EveryCallOfTheDiskMayFail) {
  MakeStore();
  ASSERT_TRUE(Reopen({}).ok());
  ASSERT_TRUE(MakeSwapper(2).ok());
  ASSERT_EQ(Train(0, 2, true), absl::OkStatus());
  const int64_t num_calls = disk_->num_calls();
  swapper_.reset();
  int64_t committed = 2;
  int num_cases = 0, num_unused = 0;
  const Sample sample(3, 15);
  for (int64_t call = sample.first(); call < num_calls; call += sample.step()) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    FaultPlan plan;
    plan.fail_call = call;
    plan.fail_all_after = call % 2 == 0;
    absl::Status status = Reopen(plan);
    if (status.ok()) status = MakeSwapper(2);
    if (status.ok()) status = Train(committed, committed + 2, true);
    // Opening reads records and checksums that there are two of. Else a piece was read ahead that
    // nobody came to use.
    if (status.ok() && call >= 4) ++num_unused;
    EXPECT_TRUE(status.ok() || ExitCodeOf(status) == ExitCode::kStorage) << status;
    ASSERT_TRUE(Reopen({}).ok());
    committed = store_->committed().step;
    ASSERT_TRUE(StoreHolds(committed));
    ++num_cases;
  }
  EXPECT_LE(num_unused, 1 + num_cases / 10);
}

TEST_F(LayerPiecesTest, APieceThatCannotBeReadIsTheErrorOfItsGetAndStays) {
  MakeStore();
  ASSERT_TRUE(Reopen({}).ok());
  ASSERT_TRUE(MakeSwapper(2).ok());
  swapper_->Expect(std::vector<int>{0});
  ASSERT_TRUE(swapper_->Acquire(0).ok());
  WeightPieces* const pieces = swapper_->PiecesOf(0);
  ASSERT_TRUE(pieces->Get(0).ok());
  // Damage of the third piece, which is not read ahead yet.
  const TileMap& tiles = store_->tiles();
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_)) {
    if (file.path().filename() != "weights.fbs") continue;
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int slot = 0; slot < 2; ++slot) {
      stream.seekp(slot * tiles.weight_area_bytes() + tiles.tiles()[4].weight_offset_bytes + 100);
      stream.put('x');
    }
  }
  ASSERT_TRUE(pieces->Get(1).ok());
  const absl::Status status = pieces->Get(2).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("reading the weights of 'embed'"));
  EXPECT_EQ(pieces->Get(0).status(), status);
  swapper_->Release(0);
  // Nothing is made of what cannot be read, and nothing is committed.
  updater_->MakeAllDue();
  EXPECT_EQ(swapper_->ApplyAllUpdates(), status);
  EXPECT_EQ(updater_->num_updates(0), 0);
  swapper_->Expect(std::vector<int>{1});
  EXPECT_EQ(swapper_->Acquire(1).status(), status);
}

// The embedding is written outside of the window: held pieces are old then.
TEST_F(LayerPiecesTest, AreReadAgainWhereTheyWereUpdatedOutside) {
  MakeStore();
  placement_.update_times.assign(kNumLayers, UpdateTime::kAfterHand);
  ASSERT_TRUE(MakeSwapper(2).ok());
  ASSERT_TRUE(ExpectAndUse({0, 0}, 0).ok());
  LayerWriter writer(store_.get());
  for (int layer = 0; layer < kNumLayers; ++layer) {
    const auto num_bytes = static_cast<size_t>(store_->tiles().layer_elems(layer) * 4);
    Scratch weights(static_cast<int64_t>(num_bytes));
    const std::span<std::byte> bytes = weights.first(static_cast<int64_t>(num_bytes));
    std::ranges::fill(std::span(reinterpret_cast<float*>(bytes.data()), num_bytes / 4),
                      Expected(layer, 1));
    writer.Start(layer, bytes);
    ASSERT_TRUE(writer.Await(layer).ok());
  }
  swapper_->ForgetUpdatedOutside();
  ASSERT_TRUE(ExpectAndUse({0, 1, 0}, 1).ok());
}

TEST_F(LayerPiecesTest, SeveralPassesMayBeAnnouncedAhead) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  for (int pass = 0; pass < 3; ++pass) swapper_->Expect(std::vector<int>{0, 1, 2, 0});
  for (int pass = 0; pass < 3; ++pass) ASSERT_TRUE(UseAll({0, 1, 2, 0}, 0).ok());
}

// Steps of models that are tied or not, whose pieces are asked for by pass or copied: the disk
// reads as much as CountTransfers says.
TEST_F(LayerPiecesTest, ReadWhatTheStepIsCountedToRead) {
  for (const bool tied : {true, false}) {
    for (const bool copies : {true, false}) {
      for (const int64_t piece_elems : {kSmallTileElems, 2 * kSmallTileElems}) {
        SCOPED_TRACE(testing::Message() << tied << copies << piece_elems);
        swapper_.reset();
        updater_.reset();
        store_.reset();
        std::filesystem::remove_all(directory_);
        MakeStore(tied);
        WindowOptions options = Options(3, 1);
        options.piece_elems = piece_elems;
        options.copies_pieces = copies;
        placement_.gradients.assign(kNumLayers, Tier::kHost);
        placement_.state.assign(static_cast<size_t>(store_->tiles().num_tiles()), Tier::kHost);
        auto swapper = Swapper::Create(options, placement_, store_.get(), updater_.get(), &budget_);
        ASSERT_TRUE(swapper.ok()) << swapper.status();
        const StepSchedule schedule = ChainSchedule(
            {.num_layers = kNumLayers, .loss_reads_first = tied, .ends_in_parts = true});
        int64_t before = 0;
        std::vector<int> lent;
        const auto pass = [&](int layer) {
          WeightPieces* const pieces = (*swapper)->PiecesOf(layer);
          for (int piece = 0; pieces != nullptr && piece < pieces->num_pieces(); ++piece) {
            ASSERT_TRUE(pieces->Get(piece).ok());
          }
        };
        for (int step = 0; step < 3; ++step) {
          if (step > 0) updater_->MakeAllDue();
          before = engine_->stats().submitted_read_bytes;
          (*swapper)->Expect(schedule.Reads());
          for (const auto& [kind, layer] : schedule.operations) {
            switch (kind) {
              case OperationKind::kRead:
                ASSERT_TRUE((*swapper)->Acquire(layer).ok());
                lent.push_back(layer);
                if (copies) pass(layer);
                break;
              case OperationKind::kRelease:
                std::erase(lent, layer);
                (*swapper)->Release(layer);
                break;
              case OperationKind::kForward:
              case OperationKind::kHand:
                if (!copies && std::ranges::count(lent, layer) > 0) pass(layer);
                break;
              case OperationKind::kLossAndGradient:
                if (copies) break;
                if (WeightPieces* const own = (*swapper)->PiecesOf(layer); own != nullptr) {
                  ASSERT_TRUE(own->Get(own->num_pieces() - 1).ok());
                }
                for (const int held : lent) {
                  pass(held);
                  pass(held);
                }
                break;
              default:
                break;
            }
          }
          ASSERT_TRUE((*swapper)->ApplyAllUpdates().ok());
          if (step == 0) continue;
          ASSERT_TRUE(store_->Commit({step, Json::object()}).ok());
        }
        const StepTransfers counted =
            CountTransfers(schedule, options, placement_, store_->tiles(), 4);
        EXPECT_EQ(engine_->stats().submitted_read_bytes - before, counted.read_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace forebay
