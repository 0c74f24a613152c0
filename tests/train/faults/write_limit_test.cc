// --max_tbw: what a disk has really taken, against the limit and what the run says of it.
#include "forebay/train/run/write_limit.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/swap_area.h"
#include "forebay/train/files/written_record.h"
#include "forebay/train/run/metrics.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CountingDisk : public BreakingDisk {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    const int64_t moved = BreakingDisk::Transfer(kind, fd, path, buffer, offset_bytes);
    if (kind == IoKind::kWrite && moved > 0) written_bytes += moved;
    return moved;
  }
  std::atomic<int64_t> written_bytes = 0;
};

class WriteLimitTest : public testing::Test {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.durability = Durability::kStep;
    options.steps = 10;
    return options;
  }
  // As the last commit has it.
  static int64_t WrittenBytes(const std::string& out) {
    const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
    const auto store = OpenRunStore(out, engine.get(), StoreAccess::kReadOnly);
    EXPECT_TRUE(store.ok()) << store.status();
    return (*store)->committed().trainer[kWrittenBytesKey].get<int64_t>();
  }
  // As written.json has it, where the last session has ended.
  static int64_t RecordedBytes(const std::string& out) {
    const auto record = ReadWrittenRecord(RunPaths(out).written);
    EXPECT_TRUE(record.ok() && record->has_value() && (*record)->ended) << record.status();
    return (*record)->bytes;
  }
  static std::string Written(const CountingDisk& disk) {
    return fmt::format("have written {} to the disks", FormatBytes(disk.written_bytes));
  }
  static int64_t MostOfAStep(const std::string& out) {
    int64_t most = 0;
    std::ifstream file(RunPaths(out).metrics);
    for (std::string line; std::getline(file, line);) {
      most = std::max(most, Json::parse(line)["write_bytes"].get<int64_t>());
    }
    return most;
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
};

TEST_F(WriteLimitTest, StopsBeforeItAndGoesOnToTheSameBitsWithALargerOne) {
  CountingDisk whole;
  ASSERT_EQ(TrainToy(Options("whole"), OnDisk(&whole)), absl::OkStatus());
  const int64_t step_bytes = MostOfAStep(Options("whole").out);
  for (const double share : {0.5, 0.8}) {
    SCOPED_TRACE(share);
    TrainOptions options = Options(share < 0.6 ? "early" : "late");
    const int64_t limit = static_cast<int64_t>(static_cast<double>(whole.written_bytes) * share);
    options.max_tbw = static_cast<double>(limit) * 1e-12;
    CountingDisk disk;
    const absl::Status stopped = TrainToy(options, OnDisk(&disk));
    EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted) << stopped;
    EXPECT_THAT(MessageOf(stopped), AllOf(HasSubstr("as --max_tbw="), HasSubstr("have written"),
                                          HasSubstr("--resume and a larger --max_tbw")));
    EXPECT_LE(disk.written_bytes, limit);
    EXPECT_GT(disk.written_bytes, limit - 3 * step_bytes);
    EXPECT_EQ(RecordedBytes(options.out), disk.written_bytes);
    EXPECT_THAT(MessageOf(stopped), HasSubstr(Written(disk)));
    EXPECT_GT(StepsInMetrics(options.out).size(), 1u);

    const int64_t before = disk.written_bytes;
    const std::vector<int64_t> steps = StepsInMetrics(options.out);
    options.resume = true;
    const absl::Status again = TrainToy(options, OnDisk(&disk));
    EXPECT_EQ(ExitCodeOf(again), ExitCode::kInterrupted) << again;
    EXPECT_THAT(MessageOf(again), HasSubstr("a larger --max_tbw"));
    // Opening a store writes a block of its record and of the copy.
    EXPECT_LE(disk.written_bytes, before + 2 * kIoAlignBytes);
    EXPECT_LE(disk.written_bytes, limit);
    EXPECT_EQ(RecordedBytes(options.out), disk.written_bytes);
    EXPECT_THAT(MessageOf(again), HasSubstr(Written(disk)));
    EXPECT_EQ(StepsInMetrics(options.out), steps);

    options.max_tbw *= 4;
    ASSERT_EQ(TrainToy(options, OnDisk(&disk)), absl::OkStatus());
    EXPECT_EQ(*ResultOf(options.out), *ResultOf(Options("whole").out));
    // But for the last commit's own record and checksums.
    EXPECT_GE(WrittenBytes(options.out), disk.written_bytes - step_bytes / 2);
    EXPECT_EQ(RecordedBytes(options.out), disk.written_bytes);
  }
}

// Breaks the disk after a step.
class BreakingObserver : public SilentObserver {
 public:
  BreakingObserver(CountingDisk* disk, int64_t after_step) : disk_(disk), after_step_(after_step) {}
  void OnStep(const Json& metrics) override {
    if (metrics["step"] == after_step_) disk_->broken = true;
  }

 private:
  CountingDisk* const disk_;
  const int64_t after_step_;
};

// The steps after the commit are lost, and what they wrote is not.
TEST_F(WriteLimitTest, ACrashLosesNothingOfTheCount) {
  for (const int64_t last_step : {2, 7}) {
    SCOPED_TRACE(last_step);
    TrainOptions options = Options(last_step == 2 ? "uncommitted" : "committed");
    options.commit_every = 3;
    CountingDisk disk;
    BreakingObserver observer(&disk, last_step);
    const absl::Status crashed = TrainToy(options, OnDisk(&disk), observer);
    EXPECT_EQ(ExitCodeOf(crashed), ExitCode::kStorage) << crashed;
    disk.broken = false;
    const int64_t step_bytes = MostOfAStep(options.out);
    options.resume = true;
    options.stop_after = 1;
    EXPECT_EQ(ExitCodeOf(TrainToy(options, OnDisk(&disk))), ExitCode::kInterrupted);
    EXPECT_GE(WrittenBytes(options.out), disk.written_bytes - step_bytes / 2);
    // And it is no wild guess, where a commit had a count.
    if (last_step == 2) continue;
    EXPECT_LE(WrittenBytes(options.out), disk.written_bytes + 3 * step_bytes);
  }
}

// A second crash does not take from the count what the first session's lines have.
TEST_F(WriteLimitTest, TwoCrashesBeforeACommitBothCount) {
  TrainOptions options = Options("run");
  options.commit_every = 5;
  CountingDisk disk;
  for (int crash = 0; crash < 3; ++crash) {
    disk.broken = false;
    BreakingObserver observer(&disk, 4);
    const absl::Status crashed = TrainToy(options, OnDisk(&disk), observer);
    EXPECT_EQ(ExitCodeOf(crashed), ExitCode::kStorage) << crashed;
    options.resume = true;
  }
  disk.broken = false;
  ASSERT_EQ(TrainToy(options, OnDisk(&disk)), absl::OkStatus());
  EXPECT_GE(RecordedBytes(options.out), disk.written_bytes);
}

TEST_F(WriteLimitTest, ALimitBelowTheFirstStepIsRefusedBeforeTheRunIsMade) {
  TrainOptions options = Options("run");
  options.max_tbw = 1e-7;
  const absl::Status refused = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit) << refused;
  EXPECT_THAT(MessageOf(refused), AllOf(HasSubstr("--max_tbw=1e-07"), HasSubstr("Give at least")));
  EXPECT_FALSE(FileExists(options.out));
}

TEST(KernelCounts, MoreThanTheEngineByATenthAndTheLogsAreWorthAWarning) {
  const int64_t gb = 1'000'000'000;
  EXPECT_FALSE(KernelCountsMore(10 * gb, 10 * gb));
  EXPECT_FALSE(KernelCountsMore(11 * gb, 10 * gb));
  EXPECT_TRUE(KernelCountsMore(12 * gb, 10 * gb));
  EXPECT_FALSE(KernelCountsMore(10'000, 0));
}

}  // namespace
}  // namespace forebay
