// Ranks that die, hang or are stopped: the others end too, and the run goes on to the bits of one
// that was never disturbed.
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Each;
using testing::HasSubstr;

class FailedRanksRunTest : public testing::Test {
 protected:
  TrainOptions Options(const std::string& name) const {
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.batch = 2;
    options.accum = 1;
    return options;
  }
  void SetUp() override {
    const TrainOptions options = Options("undisturbed");
    ASSERT_THAT(TrainRanks(options), Each(absl::OkStatus()));
    expected_ = DigestOfRanks(options.out, 2);
    ASSERT_NE(expected_, "");
  }
  // Goes on with a run on both ranks, or begins it where it never was.
  void ExpectToGoOn(TrainOptions options) {
    const auto is_ready = [&](int rank) {
      const auto json = ReadRunJson(RunFolderOfRank(options.out, rank));
      return json.ok() && (*json)["state"] == kRunReady;
    };
    ASSERT_EQ(is_ready(0), is_ready(1));
    options.resume = is_ready(0);
    EXPECT_THAT(TrainRanks(options), Each(absl::OkStatus()));
    EXPECT_EQ(DigestOfRanks(options.out, 2), expected_);
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
  std::string expected_;
};

TEST_F(FailedRanksRunTest, DieBeforeAnyExchange) {
  // Until it does not come so far any more.
  for (int64_t exchange = 0;; exchange += 5) {
    SCOPED_TRACE(exchange);
    const TrainOptions options = Options("died" + std::to_string(exchange));
    RankRuns runs;
    runs.ranks.faults = {{ThreadFaultKind::kDies, /*rank=*/1, exchange}};
    const std::vector<absl::Status> statuses = TrainRanks(options, runs);
    if (statuses[0].ok() && statuses[1].ok()) {
      EXPECT_GT(exchange, 20);
      return;
    }
    EXPECT_EQ(ExitCodeOf(statuses[0]), ExitCode::kEnvironment) << statuses[0];
    EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1"));
    EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("thread1"));
    ExpectToGoOn(options);
  }
}

TEST_F(FailedRanksRunTest, OneThatHangsIsWaitedForSoLong) {
  const TrainOptions options = Options("hung");
  RankRuns runs;
  runs.timeout_s = 0.5;
  runs.ranks.faults = {{ThreadFaultKind::kHangs, /*rank=*/0, /*exchange=*/20}};
  const std::vector<absl::Status> statuses = TrainRanks(options, runs);
  EXPECT_EQ(ExitCodeOf(statuses[1]), ExitCode::kEnvironment) << statuses[1];
  EXPECT_THAT(MessageOf(statuses[1]), HasSubstr("rank 0"));
  ExpectToGoOn(options);
}

// The others end with its reason, and with its exit code.
TEST_F(FailedRanksRunTest, LoseADisk) {
  const TrainOptions options = Options("lost_disk");
  ExpectEndByALostDisk(options);
  ExpectToGoOn(options);
}

// It writes tiles, but not the checksums that a commit needs.
class DiskWithoutSeals : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (fails && kind == IoKind::kWrite && path.ends_with("seals.fbs")) return -EIO;
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }

  std::atomic<bool> fails = false;
};

// A rank publishes no step that another cannot prepare.
TEST_F(FailedRanksRunTest, LoseADiskInTheMidstOfACommit) {
  const TrainOptions options = Options("no_seals");
  DiskWithoutSeals disk;
  RankRuns runs;
  runs.world = [&](int rank) { return rank == 1 ? OnDisk(&disk) : TrainEnvironment{}; };
  runs.stop = [&](int rank) {
    if (rank == 1 && !StepsInMetrics(RunFolderOfRank(options.out, 1)).empty()) disk.fails = true;
    return false;
  };
  for (const absl::Status& status : TrainRanks(options, runs)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  }
  ExpectToGoOn(options);
}

// Whichever rank is asked to, all stop behind the same step.
TEST_F(FailedRanksRunTest, StopTogether) {
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    const TrainOptions options = Options("stopped" + std::to_string(rank));
    RankRuns runs;
    runs.change = [&](int, TrainOptions& of_rank) { of_rank.commit_every = 100; };
    runs.stop = [&, rank](int asked) {
      return asked == rank && StepsInMetrics(RunFolderOfRank(options.out, rank)).size() >= 2;
    };
    for (const absl::Status& status : TrainRanks(options, runs)) {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr("after step 2 of 3"));
    }
    ExpectToGoOn(options);
  }
}

// Each rank has the whole state: one that is new goes on with a copy of it.
TEST_F(FailedRanksRunTest, MoreRanksGoOnWithCopies) {
  TrainOptions options = Options("alone");
  options.stop_after = 2;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.stop_after = 0;
  options.resume = true;
  for (int rank = 1; rank < 2; ++rank) {
    const std::string copy = folder_.Path("copy");
    std::filesystem::copy(options.out, copy, std::filesystem::copy_options::recursive);
    std::filesystem::rename(copy, RunFolderOfRank(options.out, rank));
  }
  EXPECT_THAT(TrainRanks(options), Each(absl::OkStatus()));
  EXPECT_NE(DigestOfRanks(options.out, 2), "");
  EXPECT_EQ(StepsInMetrics(options.out), (std::vector<int64_t>{1, 2, 3}));
}

// Both made the second step, rank 0 alone and rank 1 with another.
TEST_F(FailedRanksRunTest, WhatWentOnApartIsRefusedAtOneStepToo) {
  TrainOptions options = Options("apart");
  options.stop_after = 1;
  const auto must_stop = [](const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      ASSERT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
    }
  };
  must_stop(TrainRanks(options));
  const std::string second = RunFolderOfRank(options.out, 1);
  const std::string before = folder_.Path("before");
  std::filesystem::copy(options.out, before, std::filesystem::copy_options::recursive);
  options.resume = true;
  must_stop(TrainRanks(options));
  std::filesystem::remove_all(RunFolderOfRank(before, 1));
  std::filesystem::rename(second, RunFolderOfRank(before, 1));
  std::filesystem::remove_all(options.out);
  std::filesystem::rename(before, options.out);
  must_stop({TrainToy(options)});
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("they went on apart"));
  }
}

// And so one process can go on with it.
TEST_F(FailedRanksRunTest, OneProcessGoesOnWithTheState) {
  TrainOptions options = Options("stopped");
  options.stop_after = 2;
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
  }
  options.stop_after = 0;
  options.resume = true;
  EXPECT_EQ(TrainToy(options), absl::OkStatus());
  EXPECT_EQ(StepsInMetrics(options.out), (std::vector<int64_t>{1, 2, 3}));
  // The stores of the ranks are of two times now, and no guess is made.
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  }
}

}  // namespace
}  // namespace forebay
