// --delay_update_from: a run that stops or ends between two commits goes on from the last one, to
// the same bits.
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Setting {
  const char* name;
  TrainOptions (ToyTask::*options)(const std::string& out) const;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

// Breaks at the first write of the state after the next commit.
class DiskThatBreaksAfterACommit : public BreakingDisk {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kWrite && is_armed) {
      if (path.ends_with("/commit.fbs")) has_committed_ = true;
      if (has_committed_ && path.ends_with("/state.fbs")) broken = true;
    }
    return BreakingDisk::Transfer(kind, fd, path, buffer, offset_bytes);
  }

  std::atomic<bool> is_armed = false;

 private:
  std::atomic<bool> has_committed_ = false;
};

// Steps 2 and 3 do not see the update of the step before, except that step 2 is committed with its
// own; the toy has three.
class DelayedRunTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    ASSERT_EQ(TrainToy(Options("undisturbed")), absl::OkStatus());
    auto expected = ResultOf(folder_.Path("undisturbed"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
  }
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = (task_.*GetParam().options)(folder_.Path(name));
    task_.Delay(options);
    return options;
  }
  // The steps that are computed then.
  std::vector<int64_t> Resume(TrainOptions options) {
    options.resume = true;
    options.stop_after = 0;
    NotingObserver observer([] {});
    const absl::Status status = TrainToy(options, {}, observer);
    EXPECT_TRUE(status.ok()) << status;
    ExpectResumesTo(expected_, options, status);
    return observer.steps;
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  ToyResult expected_;
};

TEST_P(DelayedRunTest, IsAnotherResultThanThatOfUpdatesInTime) {
  const TrainOptions in_time = (task_.*GetParam().options)(folder_.Path("in_time"));
  ASSERT_EQ(TrainToy(in_time), absl::OkStatus());
  const auto result = ResultOf(in_time.out);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(*result == expected_);
}

TEST_P(DelayedRunTest, AStopGoesOnFromTheLastCommitAndSaysSo) {
  TrainOptions options = Options("run");
  options.stop_after = 1;
  absl::Status stopped = TrainToy(options);
  ASSERT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted) << stopped;
  EXPECT_THAT(MessageOf(stopped), HasSubstr("What is saved is step 0, of the last commit"));
  options.resume = true;
  options.stop_after = 2;
  stopped = TrainToy(options);
  ASSERT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted) << stopped;
  EXPECT_THAT(MessageOf(stopped), HasSubstr("after step 2 of 3. All of it is saved"));
  EXPECT_THAT(Resume(options), ElementsAre(3));
}

// After the second step was reported, its update is due and commits with the third step's pass.
TEST_P(DelayedRunTest, ACrashGoesOnFromTheLastCommit) {
  TrainOptions options = Options("run");
  BreakingDisk disk;
  NotingObserver observer([&] { disk.broken = true; });
  const absl::Status status = TrainToy(options, OnDisk(&disk), observer);
  ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(Resume(options), ElementsAre(1, 2, 3));
}

TEST_P(DelayedRunTest, TheLastCommitIsThatOfAStepInBetween) {
  TrainOptions options = Options("run");
  DiskThatBreaksAfterACommit disk;
  NotingObserver observer([&] { disk.is_armed = true; });
  const absl::Status status = TrainToy(options, OnDisk(&disk), observer);
  ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(Resume(options), ElementsAre(3));
}

// Where commits fall is part of the result.
TEST_P(DelayedRunTest, OtherCommitsAreRefusedOnResume) {
  TrainOptions options = Options("run");
  options.stop_after = 1;
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.resume = true;
  options.commit_every = 3;
  const absl::Status status = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("--commit_every: the run has \"2\""));
}

INSTANTIATE_TEST_SUITE_P(Runs, DelayedRunTest,
                         testing::Values(Setting{"Spilled", &ToyTask::TightRun},
                                         Setting{"InRam", &ToyTask::RoomyRun},
                                         Setting{"Striped", &ToyTask::StripedRun}),
                         [](const auto& run) { return std::string(run.param.name); });

}  // namespace
}  // namespace forebay
