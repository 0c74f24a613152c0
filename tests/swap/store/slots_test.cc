// Stores with two slots in which several steps share a commit, and stores with one slot.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class SlotsTest : public StoreFixture {
 protected:
  std::unique_ptr<TensorStore> MustCreate(int num_slots) {
    auto store = TensorStore::Create(
        {.directories = {directory_}, .tile_elems = kSmallTileElems, .num_slots = num_slots},
        SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
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
    EXPECT_EQ(one_slot_bytes - 4 * kCommitRecordBytes,
              (Total(TensorStore::DiskBytes(store->tiles(), 2, {})) - 4 * kCommitRecordBytes) / 2);
    for (const int64_t step : {1, 2, 3}) {
      ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
      EXPECT_TRUE(HoldsStep(*store, step));
    }
  }
  int64_t total_bytes = 0;
  for (const char* name : {"weights.fbs", "state.fbs", "seals.fbs", "commit.fbs", "copy/seals.fbs",
                           "copy/commit.fbs"}) {
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
  // Opening reads two records and the checksums twice, and writes and flushes both records; then a
  // record is written and flushed.
  plan.fail_call = 8 + 1;
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

// Reads all of a step, in another thread than the one that writes the next.
absl::Status ReadAll(const StoreSnapshot& snapshot, std::vector<float>& values) {
  for (const TensorSpec& tensor : snapshot.inventory().tensors()) {
    for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
      const size_t first = values.size();
      values.resize(first + static_cast<size_t>(tensor.num_elems));
      FOREBAY_RETURN_IF_ERROR(
          snapshot.ReadTensor(tensor, plane, 0, std::span(values).subspan(first)));
    }
  }
  return absl::OkStatus();
}

TEST_F(SlotsTest, ASnapshotIsOfItsStepWhileTheNextIsWrittenAndCommitted) {
  const auto store = MustCreate(2);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  std::vector<float> expected;
  ASSERT_EQ(ReadAll(StoreSnapshot(store.get()), expected), absl::OkStatus());
  for (int64_t step = 2; step <= 4; ++step) {
    auto snapshot = std::make_unique<StoreSnapshot>(store.get());
    EXPECT_EQ(snapshot->step(), step - 1);
    EXPECT_FALSE(store->AwaitsSnapshot());
    std::vector<float> values;
    absl::Status status;
    std::thread reader([&] { status = ReadAll(*snapshot, values); });
    const absl::Status written = WriteStep(*store, step);
    reader.join();
    ASSERT_EQ(written, absl::OkStatus());
    ASSERT_EQ(status, absl::OkStatus());
    // Bit for bit: patterns are no numbers.
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), 4 * expected.size()), 0);
    EXPECT_TRUE(store->AwaitsSnapshot());
    values.clear();
    ASSERT_EQ(ReadAll(*snapshot, values), absl::OkStatus());
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), 4 * expected.size()), 0);
    snapshot.reset();
    EXPECT_FALSE(store->AwaitsSnapshot());
    expected.clear();
    ASSERT_EQ(ReadAll(StoreSnapshot(store.get()), expected), absl::OkStatus());
  }
}

TEST_F(SlotsTest, WithOneSlotASnapshotIsInTheWayOfTheNextStep) {
  const auto store = MustCreate(1);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  {
    const StoreSnapshot snapshot(store.get());
    EXPECT_TRUE(store->AwaitsSnapshot());
  }
  EXPECT_FALSE(store->AwaitsSnapshot());
  ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
}

TEST_F(SlotsDeathTest, WritingOverASnapshotIsABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto store = MustCreate(2);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  const StoreSnapshot snapshot(store.get());
  ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
  EXPECT_DEATH(store->BeginWriting().IgnoreError(), "AwaitsSnapshot");
}

// Nor is it one less where nobody said that writing begins, as a commit does.
TEST_F(SlotsDeathTest, WritingATileOverASnapshotIsABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto store = MustCreate(2);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  auto snapshot = std::make_unique<StoreSnapshot>(store.get());
  ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
  Scratch scratch(store->tiles().max_state_bytes());
  const Tile& tile = store->tiles().tiles()[0];
  IoOp op;
  EXPECT_DEATH(store->StartWriteWeights(0, scratch.first(store->tiles().WeightBytes(tile)), op),
               "IsRead");
  EXPECT_DEATH(store->StartWriteState(0, scratch.first(store->tiles().StateBytes(tile)), op),
               "IsRead");
  snapshot.reset();
  store->StartWriteState(0, scratch.first(store->tiles().StateBytes(tile)), op);
  EXPECT_EQ(store->engine().Wait(op), absl::OkStatus());
}

}  // namespace
}  // namespace forebay
