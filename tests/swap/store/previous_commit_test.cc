// The commit before the committed one, which the other slot holds until it is written over.
#include <fcntl.h>

#include <memory>
#include <span>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PreviousCommitTest : public StoreFixture {
 protected:
  std::unique_ptr<TensorStore> MustCreate() {
    auto store = TensorStore::Create({.directories = {directory_}, .tile_elems = kSmallTileElems},
                                     SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Whether all weights of `generation` are those of `step`; the error of the first that is not
  // what was written.
  absl::Status Holds(TensorStore& store, Generation generation, int64_t step) {
    Scratch read(store.tiles().max_weight_bytes());
    Scratch expected(store.tiles().max_weight_bytes());
    for (int i = 0; i < store.tiles().num_tiles(); ++i) {
      const int64_t bytes = store.tiles().WeightBytes(store.tiles().tiles()[i]);
      IoOp op;
      store.StartReadWeights(i, read.first(bytes), IoClass::kDemand, op, generation);
      FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
      FOREBAY_RETURN_IF_ERROR(store.VerifyWeights(i, read.first(bytes), generation));
      FillPattern(expected.first(bytes), step, i, /*state=*/false);
      EXPECT_TRUE(std::ranges::equal(read.first(bytes), expected.first(bytes))) << "tile " << i;
    }
    return absl::OkStatus();
  }
  void Flip(const char* name, int64_t at) const {
    std::string contents = *ReadWholeFile(File(name), 1 << 24);
    contents[static_cast<size_t>(at)] ^= 1;
    const auto fd = OpenFile(File(name), O_WRONLY);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
  // Steps 1 (slot A) and 2 (slot B), closed.
  void MakeTwoSteps() {
    const auto store = MustCreate();
    for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
  }
};

TEST_F(PreviousCommitTest, IsThereAfterACommitAndInTheNextProcess) {
  {
    const auto store = MustCreate();
    for (const int64_t step : {1, 2, 3}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
    EXPECT_EQ(store->FindPrevious(), absl::OkStatus());
    EXPECT_EQ(Holds(*store, Generation::kPrevious, 2), absl::OkStatus());
  }
  const auto store = MustOpen();
  ASSERT_EQ(store->FindPrevious(), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kPrevious, 2), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kCommitted, 3), absl::OkStatus());
  ASSERT_EQ(WriteStep(*store, 4), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kPrevious, 3), absl::OkStatus());
}

TEST_F(PreviousCommitTest, WhatIsCommittedIsReadWhileTheNextIsWritten) {
  MakeTwoSteps();
  const auto store = MustOpen();
  ASSERT_EQ(WriteTiles(*store, 3), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kNewest, 3), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kCommitted, 2), absl::OkStatus());
}

TEST_F(PreviousCommitTest, IsFoundBehindStepsThatChangedNothing) {
  {
    const auto store = MustCreate();
    for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
    ASSERT_EQ(SkipStep(*store, 3), absl::OkStatus());
    ASSERT_EQ(WriteStep(*store, 4), absl::OkStatus());
    EXPECT_EQ(Holds(*store, Generation::kPrevious, 2), absl::OkStatus());
  }
  const auto store = MustOpen();
  ASSERT_EQ(store->FindPrevious(), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kPrevious, 2), absl::OkStatus());
}

// What a crash has left of an update is not what was there before it.
TEST_F(PreviousCommitTest, ATileThatWasWrittenOverIsNot) {
  MakeTwoSteps();
  ASSERT_EQ(WriteTiles(*MustOpen(), 3), absl::OkStatus());
  const auto store = MustOpen();
  ASSERT_EQ(store->FindPrevious(), absl::OkStatus());
  const absl::Status status = Holds(*store, Generation::kPrevious, 1);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("slot A) differ from their checksum"),
                    HasSubstr("The step after step 2 needs the weights of the commit before")));
  EXPECT_EQ(Holds(*store, Generation::kCommitted, 2), absl::OkStatus());
}

TEST_F(PreviousCommitTest, OneDamagedTableIsNoLoss) {
  MakeTwoSteps();
  Flip("seals.fbs", 5000);
  const auto store = MustOpen();
  ASSERT_EQ(store->FindPrevious(), absl::OkStatus());
  EXPECT_EQ(Holds(*store, Generation::kPrevious, 1), absl::OkStatus());
}

TEST_F(PreviousCommitTest, IsLostWithBothTables) {
  MakeTwoSteps();
  for (const char* name : kSealsNames) Flip(name, 5000);
  const absl::Status status = MustOpen()->FindPrevious();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("are damaged"));
}

// An attempt at step 3 that was complete but for its record, and then given up.
TEST_F(PreviousCommitTest, AnAttemptIsNot) {
  MakeTwoSteps();
  const std::string records = *ReadWholeFile(File("commit.fbs"), 1 << 24);
  ASSERT_EQ(WriteStep(*MustOpen(), 3), absl::OkStatus());
  for (const char* name : kCommitNames) {
    const auto fd = OpenFile(File(name), O_WRONLY);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(records)), 0, File(name)).ok());
  }
  for (const bool skips : {false, true}) {
    SCOPED_TRACE(skips);
    const auto store = MustOpen();
    ASSERT_EQ(store->committed().step, 2);
    if (skips) {
      ASSERT_EQ(SkipStep(*store, 3), absl::OkStatus());
      ASSERT_EQ(SkipStep(*store, 4), absl::OkStatus());
    }
    const absl::Status status = store->FindPrevious();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("belong to step 3, not to the commit before"));
  }
}

TEST_F(PreviousCommitTest, WhatARepairWentBackFromIsNot) {
  MakeTwoSteps();
  const int64_t half = *FileSize(File("weights.fbs")) / 2;
  Flip("weights.fbs", half + 100);
  MemoryBudget budget(0);
  const auto report = TensorStore::Repair({directory_}, engine_.get(), "", &budget, {});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->step, 1);
  const absl::Status status = MustOpen()->FindPrevious();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("belong to step 2, not to the commit before"));
}

}  // namespace
}  // namespace forebay
