// Stores with two slots in which several steps share a commit, and stores with one slot.
#include <memory>
#include <string>

#include "forebay/aio/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/swap/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class SlotsTest : public testing::Test {
 protected:
  std::unique_ptr<TensorStore> MustCreate(int num_slots) {
    auto store = TensorStore::Create(
        {.directories = {directory_}, .tile_elems = kSmallTileElems, .num_slots = num_slots},
        SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::unique_ptr<TensorStore> MustOpen() {
    auto store = TensorStore::Open({directory_}, engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status OpenError() { return TensorStore::Open({directory_}, engine_.get()).status(); }
  std::string File(const std::string& name) const { return JoinPath(directory_, name); }

  TemporaryFolder folder_;
  std::string directory_ = folder_.Path("swap");
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
};

TEST_F(SlotsTest, StepsThatShareACommitAreWrittenOverOneAnother) {
  const auto store = MustCreate(2);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  for (const int64_t step : {2, 3, 4}) {
    ASSERT_EQ(WriteTiles(*store, step), absl::OkStatus());
    EXPECT_TRUE(HoldsStep(*store, step)) << "what is read is the newest";
  }
  EXPECT_EQ(store->committed().step, 1);
  ASSERT_EQ(store->Commit({4, Json::object()}), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(*store, 4));
}

TEST_F(SlotsTest, WithoutACommitTheStepsThatWouldShareItAreGone) {
  {
    const auto store = MustCreate(2);
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(WriteTiles(*store, 2), absl::OkStatus());
    ASSERT_EQ(WriteTiles(*store, 3), absl::OkStatus());
  }
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

TEST_F(SlotsTest, TakesHalfTheSpaceAndKeepsWhatIsCommitted) {
  int64_t one_slot_bytes = 0;
  {
    const auto store = MustCreate(1);
    EXPECT_EQ(store->num_slots(), 1);
    one_slot_bytes = Total(TensorStore::DiskBytes(store->tiles(), 1, {}));
    EXPECT_EQ(one_slot_bytes - 2 * kCommitRecordBytes,
              (Total(TensorStore::DiskBytes(store->tiles(), 2, {})) - 2 * kCommitRecordBytes) / 2);
    for (const int64_t step : {1, 2, 3}) {
      ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
      EXPECT_TRUE(HoldsStep(*store, step));
    }
  }
  int64_t total_bytes = 0;
  for (const char* name : {"weights.fbs", "state.fbs", "seals.fbs", "commit.fbs"}) {
    total_bytes += *FileSize(File(name));
  }
  EXPECT_EQ(total_bytes, one_slot_bytes);
  const auto store = MustOpen();
  EXPECT_EQ(store->num_slots(), 1);
  EXPECT_EQ(store->committed().step, 3);
  EXPECT_TRUE(HoldsStep(*store, 3));
}

TEST_F(SlotsTest, WhatWasLeftWhileItWasOverwrittenIsNotOpenedAsIfItWereWhole) {
  {
    const auto store = MustCreate(1);
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(WriteTiles(*store, 2), absl::OkStatus());
  }
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr("keeps one copy"));
}

TEST_F(SlotsTest, ARepairFindsOutWhenNothingWasOverwrittenYet) {
  {
    const auto store = MustCreate(1);
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    ASSERT_EQ(store->BeginWriting(), absl::OkStatus());
  }
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  MemoryBudget budget(0);
  const auto report = TensorStore::Repair({directory_}, engine_.get(), "", &budget, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->changed);
  EXPECT_EQ(report->step, 1);
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

TEST_F(SlotsTest, KeepsItsStepWhenTheDiskDoesNotTakeTheAnnouncement) {
  {
    const auto store = MustCreate(1);
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  }
  FaultPlan plan;
  // Opening flushes and reads two records and the checksums; then a record is written and flushed.
  plan.fail_call = 4 + 1;
  FaultyDisk disk(plan);
  const auto faulty = CreateThreadsEngine({.num_threads = 1}, &disk);
  auto store = TensorStore::Open({directory_}, faulty.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status first = (*store)->BeginWriting();
  EXPECT_EQ(ExitCodeOf(first), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(first), HasSubstr("as being overwritten"));
  EXPECT_THAT(MessageOf(first), HasSubstr("it still is step 1"));
  EXPECT_THAT(MessageOf((*store)->BeginWriting()), HasSubstr("takes no commit any more"));
  store->reset();
  // The first copy of the announcement is there, and nothing else was touched.
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  MemoryBudget budget(0);
  ASSERT_TRUE(TensorStore::Repair({directory_}, engine_.get(), "", &budget, {}).ok());
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

using SlotsDeathTest = SlotsTest;

TEST_F(SlotsDeathTest, OverwritingWhatIsCommittedUnannouncedIsABug) {
  const auto store = MustCreate(1);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  Scratch scratch(store->tiles().max_state_bytes());
  const auto bytes = scratch.first(store->tiles().WeightBytes(store->tiles().tiles()[0]));
  IoOp op;
  EXPECT_DEATH(store->StartWriteWeights(0, bytes, op), "internal error");
}

}  // namespace
}  // namespace forebay
