// Commits of steps that changed no tile.
#include <fcntl.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class SkippedStepTest : public StoreFixture, public testing::WithParamInterface<int> {
 protected:
  std::unique_ptr<TensorStore> MustCreate() {
    auto store = TensorStore::Create(
        {.directories = {directory_}, .tile_elems = kSmallTileElems, .num_slots = GetParam()},
        SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // A store that skipped steps 2 and 3, closed.
  void MakeAndSkip() {
    const auto store = MustCreate();
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(SkipStep(*store, 2), absl::OkStatus());
    ASSERT_EQ(SkipStep(*store, 3), absl::OkStatus());
  }
  absl::StatusOr<RepairReport> Repair() {
    MemoryBudget budget(0);
    return TensorStore::Repair({directory_}, engine_.get(), "", &budget, {});
  }
  void WriteFile(const char* name, const std::string& contents) const {
    const auto fd = OpenFile(File(name), O_WRONLY);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
  void Flip(const char* name, int64_t at) const {
    std::string contents = *ReadWholeFile(File(name), 1 << 24);
    contents[static_cast<size_t>(at)] ^= 1;
    WriteFile(name, contents);
  }
  // In both copies of a slot's table.
  void FlipInTables(int slot, int64_t at) const {
    const TileMap tiles(SmallInventory(), Layout::kBf16, kSmallTileElems);
    for (const char* name : kSealsNames) Flip(name, slot * TileSeals::TableBytes(tiles, 0) + at);
  }
  // Step 1 in slot A, step 2 in slot B but for its record, and as many steps that skipped it.
  void MakeAndAbandon(int num_skipped) {
    ASSERT_EQ(WriteStep(*MustCreate(), 1), absl::OkStatus());
    const auto commit_before = *ReadWholeFile(File("commit.fbs"), 1 << 24);
    ASSERT_EQ(WriteStep(*MustOpen(), 2), absl::OkStatus());
    for (const char* name : kCommitNames) WriteFile(name, commit_before);
    for (int i = 1; i <= num_skipped; ++i) {
      ASSERT_EQ(SkipStep(*MustOpen(), 1 + i), absl::OkStatus());
    }
  }
  std::string File(const char* name) const { return JoinPath(directory_, name); }
};

// Of a table: in the trainer's text of the record at its head, and in the first seal.
constexpr int64_t kInHead = 100;
constexpr int64_t kBehindHead = kCommitRecordBytes + 100;

TEST_P(SkippedStepTest, IsCommittedWithTheTilesOfTheStepBefore) {
  const auto store = MustCreate();
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  ASSERT_EQ(SkipStep(*store, 2), absl::OkStatus());
  EXPECT_EQ(store->committed().step, 2);
  EXPECT_TRUE(HoldsStep(*store, 1));
  ASSERT_EQ(WriteStep(*store, 3), absl::OkStatus());
  ASSERT_EQ(SkipStep(*store, 4), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(*store, 3));
}

TEST_P(SkippedStepTest, IsFoundByTheNextProcessWhichGoesOn) {
  MakeAndSkip();
  for (const int64_t step : {3, 4}) {
    const auto store = MustOpen();
    EXPECT_EQ(store->committed().step, step);
    EXPECT_EQ(StepOfTiles(store->committed()), 1);
    EXPECT_TRUE(HoldsStep(*store, 1));
    ASSERT_EQ(SkipStep(*store, step + 1), absl::OkStatus());
  }
  {
    const auto store = MustOpen();
    ASSERT_EQ(WriteStep(*store, 6), absl::OkStatus());
  }
  const auto store = MustOpen();
  EXPECT_EQ(store->committed().step, 6);
  EXPECT_TRUE(HoldsStep(*store, 6));
}

TEST_P(SkippedStepTest, WritesNoTile) {
  MakeAndSkip();
  const auto contents = [&] {
    std::string all;
    for (const char* name : {"weights.fbs", "state.fbs", "seals.fbs"}) {
      all += *ReadWholeFile(File(name), 1 << 24);
    }
    return all;
  };
  const std::string before = contents();
  ASSERT_EQ(SkipStep(*MustOpen(), 4), absl::OkStatus());
  EXPECT_TRUE(contents() == before);
}

// What is whole stays what it is; records that are lost go back to the step that wrote the tiles.
TEST_P(SkippedStepTest, IsKeptByARepair) {
  MakeAndSkip();
  auto report = Repair();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->changed);
  EXPECT_EQ(report->step, 3);

  for (const char* name : kCommitNames) {
    std::filesystem::resize_file(File(name), 0);
    std::filesystem::resize_file(File(name), 8192);
  }
  report = Repair();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->changed);
  EXPECT_EQ(report->step, 1);
  const auto store = MustOpen();
  EXPECT_EQ(store->committed().step, 1);
  EXPECT_TRUE(HoldsStep(*store, 1));
}

// Marked as being overwritten, when nothing was yet.
TEST_P(SkippedStepTest, IsWhatARepairFindsOfAnOverwriting) {
  MakeAndSkip();
  { ASSERT_EQ(MustOpen()->BeginWriting(), absl::OkStatus()); }
  const auto report = Repair();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->changed, GetParam() == 1);
  EXPECT_EQ(report->step, 3);
  const auto store = MustOpen();
  EXPECT_EQ(StepOfTiles(store->committed()), 1);
  EXPECT_TRUE(HoldsStep(*store, 1));
}

// As a step that is given up when its gradients are known.
TEST_P(SkippedStepTest, MayFollowAnAnnouncementOfWrites) {
  {
    const auto store = MustCreate();
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(store->BeginWriting(), absl::OkStatus());
    ASSERT_EQ(SkipStep(*store, 2), absl::OkStatus());
  }
  const auto store = MustOpen();
  EXPECT_EQ(store->committed().step, 2);
  EXPECT_TRUE(HoldsStep(*store, 1));
}

// Of two slots: one has no room for an attempt.
using SkippedAttemptTest = SkippedStepTest;

// The next step was whole, tables and all, when the process ended; the next one skipped it.
TEST_P(SkippedAttemptTest, IsNotUndoneByARepair) {
  ASSERT_NO_FATAL_FAILURE(MakeAndAbandon(/*num_skipped=*/2));
  Flip("weights.fbs", 100);  // of slot A, where step 1 is
  const auto report = Repair();
  EXPECT_EQ(ExitCodeOf(report.status()), ExitCode::kCorrupt) << report.status();
}

// Nor where nothing but the attempt is whole: whatever is lost of the tables in force, however many
// steps were skipped.
TEST_P(SkippedAttemptTest, IsNotUndoneByARepairWithoutTheTablesInForce) {
  for (const int num_skipped : {1, 2, 3}) {
    for (const int64_t at : {kInHead, kBehindHead}) {
      SCOPED_TRACE(num_skipped);
      ASSERT_NO_FATAL_FAILURE(MakeAndAbandon(num_skipped));
      FlipInTables(0, at);
      const auto report = Repair();
      EXPECT_EQ(ExitCodeOf(report.status()), ExitCode::kCorrupt) << report.status();
      EXPECT_THAT(MessageOf(report.status()), HasSubstr("skipped afterwards"));
      EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
      ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
    }
  }
}

// An attempt that no step has skipped is the step that it was to be.
TEST_P(SkippedAttemptTest, IsTakenBeforeAnythingWasSkipped) {
  for (const int64_t at : {kInHead, kBehindHead}) {
    ASSERT_NO_FATAL_FAILURE(MakeAndAbandon(/*num_skipped=*/0));
    FlipInTables(0, at);
    const auto report = Repair();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step, 2);
    EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
    ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
  }
}

// The step before is of this history however many steps were skipped since, as long as anything
// tells when the tiles in force were written.
TEST_P(SkippedAttemptTest, DoesNotHideTheStepBefore) {
  for (const int num_skipped : {0, 1, 2}) {
    for (const int64_t at : {kInHead, kBehindHead}) {
      SCOPED_TRACE(num_skipped);
      {
        const auto store = MustCreate();
        for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
        for (int i = 1; i <= num_skipped; ++i) {
          ASSERT_EQ(SkipStep(*store, 2 + i), absl::OkStatus());
        }
      }
      FlipInTables(1, at);
      const auto report = Repair();
      const bool is_known = at == kBehindHead || num_skipped == 0;
      EXPECT_EQ(ExitCodeOf(report.status()), is_known ? ExitCode::kOk : ExitCode::kCorrupt)
          << report.status();
      if (is_known) {
        EXPECT_EQ(report->step, 1);
        EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
      }
      ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
    }
  }
}

using SkippedStepDeathTest = SkippedStepTest;

TEST_P(SkippedStepDeathTest, BeforeTheFirstStepIsABug) {
  const auto store = MustCreate();
  EXPECT_DEATH(store->CommitSkipped({1, Json::object()}).IgnoreError(), "has_commit");
}

TEST_P(SkippedStepDeathTest, OfAnOlderStepIsABug) {
  const auto store = MustCreate();
  ASSERT_EQ(WriteStep(*store, 3), absl::OkStatus());
  EXPECT_DEATH(store->CommitSkipped({3, Json::object()}).IgnoreError(), "info.step");
}

TEST_P(SkippedStepDeathTest, ThatHasWrittenAPartIsABugEitherWay) {
  const auto store = MustCreate();
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  ASSERT_EQ(store->BeginWriting(), absl::OkStatus());
  Scratch scratch(store->tiles().max_weight_bytes());
  const auto weights = scratch.first(store->tiles().WeightBytes(store->tiles().tiles()[0]));
  IoOp op;
  store->StartWriteWeights(0, weights, op);
  ASSERT_EQ(store->engine().Wait(op), absl::OkStatus());
  store->MarkWeightsWritten(0);
  EXPECT_DEATH(store->CommitSkipped({2, Json::object()}).IgnoreError(), "AllTilesAre");
  EXPECT_DEATH(store->Commit({2, Json::object()}).IgnoreError(), "AllTilesAre");
}

INSTANTIATE_TEST_SUITE_P(Slots, SkippedStepTest, testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Slots, SkippedAttemptTest, testing::Values(2));
INSTANTIATE_TEST_SUITE_P(Slots, SkippedStepDeathTest, testing::Values(1, 2));

}  // namespace
}  // namespace forebay
