#include "forebay/measure/runs/sweep.h"

#include <algorithm>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

SweepPoint Point(int64_t block, int64_t inflight, std::vector<double> gbps,
                 EngineKind engine = EngineKind::kIoUring) {
  return {block, inflight, engine, std::move(gbps)};
}

TEST(SweepPoint, AStarvedLoadMakesABadScore) {
  EXPECT_DOUBLE_EQ(Point(1, 1, {2, 2}).score(), 2);
  EXPECT_LT(Point(1, 1, {4, 0.5}).score(), 2);
  EXPECT_EQ(Point(1, 1, {}).score(), 0);
}

TEST(KneePoint, IsTheFewestBytesInFlightThatReachNearlyTheBest) {
  const std::vector<SweepPoint> points = {
      Point(1, 64, {2.0}), Point(1, 4, {1.95}), Point(1, 2, {1.8}),
      Point(1, 8, {1.99}), Point(2, 2, {1.99}), Point(1, 1, {2.0}, EngineKind::kLibaio)};
  EXPECT_EQ(BestPoint(points).inflight_bytes, 64);
  EXPECT_EQ(KneePoint(points).inflight_bytes, 4);
  EXPECT_EQ(KneePoint(points, 1.0).inflight_bytes, 64);
}

TEST(BestPoint, LeavesASettingOnlyForOneThatIsClearlyBetter) {
  std::vector<SweepPoint> points = {Point(1, 32, {1.9}),
                                    Point(1, 32, {1.94}, EngineKind::kThreads)};
  EXPECT_EQ(BestPoint(points).engine, EngineKind::kIoUring) << "2 % are noise";
  points.push_back(Point(4, 32, {2.1}));
  EXPECT_EQ(BestPoint(points).block_bytes, 4);
  EXPECT_EQ(BestPoint(points, 0.9).block_bytes, 1);
}

TEST(BestPoint, PrefersBlocksThatTheKernelDoesNotSplit) {
  std::vector<SweepPoint> points = {Point(4, 32, {2.0}), Point(1, 32, {1.96}), Point(2, 32, {1.9})};
  points[0].split = true;
  EXPECT_EQ(BestPoint(points).block_bytes, 1) << "2 % are noise, and a split is none for free";
  EXPECT_EQ(KneePoint(points).block_bytes, 1);
  points[1].gbps = {1.9};
  EXPECT_EQ(BestPoint(points).block_bytes, 4) << "here splits bring something";
  points[2].split = points[1].split = true;
  points[1].gbps = {1.96};
  EXPECT_EQ(BestPoint(points).block_bytes, 4) << "the first, where all are split";
}

std::vector<int64_t> InflightOf(const std::vector<SweepPoint>& points) {
  std::vector<int64_t> inflight;
  for (const SweepPoint& point : points) inflight.push_back(point.inflight_bytes);
  return inflight;
}

TEST(FinalistsOf, AreBestAndKneeAndTheirRunnersUpInOrder) {
  const std::vector<SweepPoint> points = {Point(1, 32, {2.0}), Point(1, 4, {1.95}),
                                          Point(1, 64, {2.01}), Point(1, 8, {1.97}),
                                          Point(1, 2, {1.0})};
  EXPECT_THAT(InflightOf(FinalistsOf(points)), ElementsAre(32, 4, 8));
  // A lucky shot: without it, another is best.
  const std::vector<SweepPoint> lucky = {Point(1, 32, {2.0}), Point(1, 4, {1.7}),
                                         Point(1, 64, {2.6}), Point(1, 16, {1.95})};
  EXPECT_THAT(InflightOf(FinalistsOf(lucky)), ElementsAre(32, 64, 16));
  EXPECT_THAT(InflightOf(FinalistsOf({Point(1, 8, {1.0})})), ElementsAre(8));
}

TEST(FinalistsOf, TheirMediansDecideAndNotTheShotsThatChoseThem) {
  const std::vector<SweepPoint> points = {Point(1, 32, {1.0}), Point(2, 32, {1.28})};
  EXPECT_EQ(BestPoint(points).block_bytes, 2);
  std::vector<SweepPoint> finalists = FinalistsOf(points);
  ASSERT_EQ(finalists.size(), 2u);
  finalists[1].gbps = {1.02};
  EXPECT_EQ(BestPoint(finalists).block_bytes, 1);
}

TEST(CheckSearch, NamesNoFlagThatASearchHasNot) {
  Job job;
  job.targets = {{"/a", 0}};
  EXPECT_TRUE(CheckSearch(job).ok());
  const auto message = [](const Job& refused) {
    const absl::Status status = CheckSearch(refused);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("--bs")));
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("--qd")));
    return MessageOf(status);
  };
  Job small = job;
  small.size_bytes = 64 << 10;
  EXPECT_THAT(message(small), HasSubstr("--size is 64.0 KiB; this takes a file of 64.0 MiB"));
  Job threads = job;
  threads.threads = 40;
  EXPECT_THAT(message(threads), HasSubstr("allowed: 1 to 32"));
  Job folders = job;
  folders.targets.resize(5, {"/b", 0});
  EXPECT_THAT(message(folders), HasSubstr("5 folders are too many"));
}

TEST(CheckBudget, NamesTheLeastInWholeSeconds) {
  EXPECT_TRUE(CheckBudget(2, 1.7).ok());
  const absl::Status status = CheckBudget(0.001, 1.7);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("take --budget=2s or more"));
}

TEST(PassBudget, SharesItsTimeAndShortensWhatComesBehindLongPasses) {
  Job job;
  job.loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}};
  job.repeats = 1;
  PassBudget enough(40, 40, 0.05);
  enough.Share(job);
  EXPECT_NEAR(job.seconds + job.warmup_s, 1, 0.01);
  EXPECT_NEAR(job.warmup_s, 0.25, 0.01);
  PassBudget spent(0, 40, 0.05);
  spent.Share(job);
  EXPECT_DOUBLE_EQ(job.seconds + job.warmup_s, 0.05);
  PassBudget plenty(1000, 4, 0.05);
  plenty.Share(job);
  EXPECT_DOUBLE_EQ(job.seconds + job.warmup_s, 3.5);
  EXPECT_DOUBLE_EQ(job.warmup_s, 0.5);
  // Left out: the last two passes have the whole time, but no more than their first share.
  PassBudget rest(4, 4, 0.05);
  rest.LeaveOut(job);
  rest.Share(job);
  EXPECT_NEAR(job.seconds + job.warmup_s, 1, 0.01);
}

TEST(StripeOrder, GivesEveryFileItsShareEvenlySpread) {
  const std::vector<double> weights = {3, 1};
  const std::vector<int> order = StripeOrder(weights);
  EXPECT_EQ(std::ranges::count(order, 0), 3 * std::ranges::count(order, 1));
  int run = 0;
  for (const int file : order) {
    run = file == 0 ? run + 1 : 0;
    EXPECT_LE(run, 3);
  }
}

TEST(StripeOrder, OfOneFileIsThatFile) {
  const std::vector<double> weights = {0.7};
  EXPECT_EQ(StripeOrder(weights), std::vector<int>{0});
}

TEST(StorageWarnings, AreSilentAboutAGoodDisk) {
  EXPECT_TRUE(
      StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,relatime"}).empty());
}

TEST(StorageWarnings, NameWhatIsWrong) {
  for (const char* fs : {"tmpfs", "ramfs", "devtmpfs"}) {
    EXPECT_THAT(StorageWarnings({.path = "/x", .fs = fs}),
                ElementsAre(HasSubstr(std::string(fs) + " keeps its files in RAM")));
  }
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "btrfs"}).size(), 1u);
  for (const char* fs : {"nfs4", "fuse.sshfs", "overlay"}) {
    EXPECT_THAT(StorageWarnings({.path = "/x", .fs = fs}),
                ElementsAre(HasSubstr("/x: " + std::string(fs))));
  }
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,nobarrier"}).size(),
            1u);
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,nodiscard"}).size(),
            0u);
  StorageInfo narrow = {.path = "/x", .fs = "ext4"};
  narrow.pcie = {"8.0 GT/s PCIe", 2, "8.0 GT/s PCIe", 4};
  EXPECT_EQ(StorageWarnings(narrow).size(), 1u);
}

}  // namespace
}  // namespace forebay
