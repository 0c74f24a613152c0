// A disk that fails at any moment: every run ends with an error that says what failed, or without
// one; none hangs, and the committed step stays whole.
#include <atomic>
#include <string>
#include <utility>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class OffloadedOptimizerFaultTest : public testing::Test {
 protected:
  // Opens the store on a disk with `plan`, and does one step.
  absl::Status RunOneStep(const FaultPlan& plan, int64_t& num_calls) {
    FaultyDisk disk(plan);
    absl::Status status;
    {
      auto run = OffloadedRun::Start(options_, folder_.path(), &disk);
      status = run.status();
      if (status.ok()) status = (*run)->Step((*run)->store().committed().step + 1).status();
    }
    num_calls = disk.num_calls();
    return status;
  }

  // Runs a step for every call that can fail, or a sample of them, and checks the store after each.
  void FailEveryCall(bool fail_all_after) {
    InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
    const Sample sample(3, 10);
    for (int64_t fail_call = sample.first();; fail_call += sample.step()) {
      SCOPED_TRACE(testing::Message() << "failing call " << fail_call);
      int64_t num_calls = 0;
      const absl::Status status =
          RunOneStep({.fail_call = fail_call, .fail_all_after = fail_all_after}, num_calls);
      if (!status.ok()) {
        ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
        ASSERT_THAT(MessageOf(status), HasSubstr("EIO"));
      }
      const auto run = OffloadedRun::Start(options_, folder_.path());
      ASSERT_TRUE(run.ok()) << run.status();
      // A commit that failed may have reached the disk all the same.
      const int64_t step = (*run)->store().committed().step;
      ASSERT_THAT(step, AnyOf(committed_, committed_ + 1));
      if (status.ok()) {
        ASSERT_EQ(step, committed_ + 1);
      }
      if (step > committed_) expected.Step(step);
      committed_ = step;
      ASSERT_NO_FATAL_FAILURE(ExpectStoreHolds((*run)->store(), expected));
      if (status.ok() && num_calls <= fail_call) return;  // every call had its turn
    }
  }

  const TemporaryFolder folder_;
  OffloadedRun::Options options_ = {.tile_elems = 6144,
                                    .state = Tiers::kMixed,
                                    .gradients = Tiers::kMixed,
                                    .num_threads = 2,
                                    .num_io_threads = 2,
                                    .num_staging_tiles = 2};
  int64_t committed_ = 0;
};

TEST_F(OffloadedOptimizerFaultTest, OneFailedCallIsACleanErrorAndTheCommittedStepStaysWhole) {
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, ADyingDiskIsACleanErrorAndTheCommittedStepStaysWhole) {
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/true);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, AFailedCallWithStateOnADeviceIsACleanErrorToo) {
  options_.tile_elems = 2048;  // more tiles than the device has buffers in RAM
  options_.state = Tiers::kDevice;
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, AFailedCallOfASpeculativeStepIsACleanErrorToo) {
  options_.state = options_.gradients = Tiers::kNvme;
  options_.speculative = true;
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

// Each step is clipped: what was applied on the device is read again there.
TEST_F(OffloadedOptimizerFaultTest, AFailedCallOfASpeculativeStepOnADeviceIsACleanErrorToo) {
  options_.state = Tiers::kThree;
  options_.gradients = Tiers::kNvme;
  options_.speculative = true;
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, AFailedCallOfADelayedUpdateIsACleanErrorToo) {
  options_.state = options_.gradients = Tiers::kNvme;
  options_.delayed = true;
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, AFailedCallOfAStepThatIsSpeculativeInPartIsOneToo) {
  options_.state = Tiers::kNvme;  // gradients as they are: some held
  options_.speculative = true;
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  FailEveryCall(/*fail_all_after=*/false);
  EXPECT_GE(committed_, 1);
}

TEST_F(OffloadedOptimizerFaultTest, CompletionsOutOfOrderChangeNothing) {
  InMemoryOptimizer expected(Layout::kBf16, DType::kBF16);
  ASSERT_TRUE(OffloadedRun::Start(options_, folder_.path()).ok());
  for (int64_t step = 1; step <= 5; ++step) {
    int64_t num_calls = 0;
    FaultPlan plan;
    plan.max_transfer_bytes = 8192;
    plan.max_delay_us = 300;
    plan.again_every = 7;
    plan.seed = static_cast<uint64_t>(step);
    ASSERT_TRUE(RunOneStep(plan, num_calls).ok());
    expected.Step(step);
  }
  const auto run = OffloadedRun::Start(options_, folder_.path());
  ASSERT_TRUE(run.ok());
  ExpectStoreHolds((*run)->store(), expected);
}

// The calls of a step in the order of this class; `fail_call` counts from the first transfer that
// `during` makes.
class OffloadedOptimizerErrorTest : public OffloadedOptimizerFaultTest {
 protected:
  // A disk that works until Fail is called.
  class BreakingDisk : public SystemDiskCalls {
   public:
    int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                     int64_t offset_bytes) override {
      if (broken_ && kind == broken_kind_) return -EIO;
      const int64_t moved = SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
      if (flips_ && kind == IoKind::kRead && path.ends_with(flipped_file_)) {
        buffer[0] ^= std::byte{1};
      }
      return moved;
    }
    // A bit of each read of the file.
    void FlipIn(std::string file) {
      flipped_file_ = std::move(file);
      flips_ = true;
    }
    void Break(IoKind kind) {
      broken_kind_ = kind;
      broken_ = true;
    }
    void Repair() { broken_ = false; }

   private:
    std::atomic<bool> broken_ = false;
    std::atomic<bool> flips_ = false;
    std::string flipped_file_;
    std::atomic<IoKind> broken_kind_ = IoKind::kRead;
  };

  std::unique_ptr<OffloadedRun> Start(const OffloadedRun::Options& options) {
    auto run = OffloadedRun::Start(options, folder_.path(), &disk_);
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }
  std::unique_ptr<OffloadedRun> StartAndRelease(const OffloadedRun::Options& options) {
    auto run = Start(options);
    const auto stats = run->Backward(1);
    EXPECT_TRUE(stats.ok());
    EXPECT_TRUE(run->optimizer().BeginUpdate(ScalarsOfStep(1, stats->norm)).ok());
    return run;
  }

  BreakingDisk disk_;
};

TEST_F(OffloadedOptimizerErrorTest, AFailedWriteBackNamesStepTileAndLayer) {
  const auto run = StartAndRelease({.state = Tiers::kHost});
  disk_.Break(IoKind::kWrite);
  ASSERT_TRUE(run->UpdateLayer(0).ok());
  const std::string message = MessageOf(run->optimizer().AwaitWriteBack(0));
  EXPECT_THAT(message, HasSubstr("step 1"));
  EXPECT_THAT(message, HasSubstr("tile 0"));
  EXPECT_THAT(message, HasSubstr("'embed'"));
  EXPECT_THAT(message, HasSubstr("weights"));
}

TEST_F(OffloadedOptimizerErrorTest, AFailedWriteBackIsReportedEveryTimeSoThatNothingCommits) {
  const auto run = StartAndRelease({.state = Tiers::kHost});
  disk_.Break(IoKind::kWrite);
  ASSERT_TRUE(run->UpdateLayer(0).ok());
  EXPECT_FALSE(run->optimizer().AwaitAllWrites().ok());
  disk_.Repair();
  EXPECT_FALSE(run->optimizer().AwaitAllWrites().ok());
}

TEST_F(OffloadedOptimizerErrorTest, AFailedReadOfStateNamesStepAndLayerAndEndsTheUpdates) {
  // Small tiles, so that the last ones of the layer are not read ahead before the disk breaks.
  const auto run = StartAndRelease({.tile_elems = 2048});
  disk_.Break(IoKind::kRead);
  MemoryBudget budget(0);
  auto buffer = HostBuffer::Create(&budget, "test", run->store().tiles().layer_elems(0) * 2);
  ASSERT_TRUE(buffer.ok());
  const absl::Status status = run->optimizer().UpdateLayer(0, buffer->bytes());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("step 1"));
  EXPECT_THAT(MessageOf(status), HasSubstr("'embed'"));
  disk_.Repair();
  EXPECT_EQ(run->optimizer().UpdateLayer(0, buffer->bytes()), status);
  EXPECT_FALSE(run->optimizer().AwaitAllWrites().ok());
}

// They are scratch, and used all the same.
TEST_F(OffloadedOptimizerErrorTest, AGradientThatChangedOnDiskIsNotUsed) {
  disk_.FlipIn("/gradients.fbs");
  const auto run = StartAndRelease({.state = Tiers::kHost, .gradients = Tiers::kNvme});
  absl::Status status = run->UpdateLayer(0);
  status.Update(run->optimizer().AwaitAllWrites());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("gradients.fbs'"));
  EXPECT_THAT(MessageOf(status), HasSubstr("of layer 'embed') differ from their checksum"));
}

TEST_F(OffloadedOptimizerErrorTest, StateThatChangedOnDiskIsNotTakenIntoMemory) {
  ASSERT_TRUE(OffloadedRun::Start({}, folder_.path()).ok());
  disk_.FlipIn("/state.fbs");
  for (const Tiers state : {Tiers::kHost, Tiers::kDevice}) {
    const absl::Status status =
        OffloadedRun::Start({.state = state}, folder_.path(), &disk_).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("state.fbs'"));
  }
}

TEST_F(OffloadedOptimizerErrorTest, AFailedSpillNamesTheLayerAndGivesNoNorm) {
  const auto run = Start({.gradients = Tiers::kNvme});
  disk_.Break(IoKind::kWrite);
  const absl::Status status = run->Backward(1).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("gradient of layer '"));
}

}  // namespace
}  // namespace forebay
