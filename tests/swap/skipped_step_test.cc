// Commits of steps that changed no tile.
#include <fcntl.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store_snapshot.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/swap/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

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
  std::string File(const char* name) const { return JoinPath(directory_, name); }
};

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

  std::filesystem::resize_file(File("commit.fbs"), 0);
  std::filesystem::resize_file(File("commit.fbs"), 8192);
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
  ASSERT_EQ(WriteStep(*MustCreate(), 1), absl::OkStatus());
  const auto commit_before = *ReadWholeFile(File("commit.fbs"), 1 << 24);
  ASSERT_EQ(WriteStep(*MustOpen(), 2), absl::OkStatus());
  WriteFile("commit.fbs", commit_before);
  for (const int64_t step : {2, 3}) ASSERT_EQ(SkipStep(*MustOpen(), step), absl::OkStatus());
  std::string weights = *ReadWholeFile(File("weights.fbs"), 1 << 24);
  weights[100] ^= 1;  // of slot A, where step 1 is
  WriteFile("weights.fbs", weights);
  const auto report = Repair();
  EXPECT_EQ(ExitCodeOf(report.status()), ExitCode::kCorrupt) << report.status();
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
