#include "forebay/measure/runs/tune.h"

#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

SweepPoint Point(int64_t block_bytes, int64_t inflight_bytes, double read, double write,
                 EngineKind engine = EngineKind::kIoUring) {
  return {.block_bytes = block_bytes,
          .inflight_bytes = inflight_bytes,
          .engine = engine,
          .gbps = {read, write}};
}

constexpr int64_t kMiB = 1 << 20;

// Bandwidth that rises with what is in flight and then stays, as disks have it.
std::vector<SweepPoint> SaturatingCurve(double read_knee, double write_knee) {
  std::vector<SweepPoint> points;
  for (int64_t inflight = 128 * kMiB; inflight >= kMiB; inflight /= 2) {
    const auto x = static_cast<double>(inflight / kMiB);
    points.push_back(
        Point(kMiB, inflight, std::min(1.0, x / read_knee) * 6, std::min(1.0, x / write_knee) * 4));
  }
  return points;
}

TEST(KneeOfLoad, IsWhereEachCurveBecomesFlat) {
  const std::vector<SweepPoint> points = SaturatingCurve(16, 4);
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 0).inflight_bytes, 16 * kMiB);
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 1).inflight_bytes, 4 * kMiB);
}

TEST(KneeOfLoad, TakesAPointWithinThreePercentOfTheBest) {
  std::vector<SweepPoint> points = {Point(kMiB, 32 * kMiB, 6.0, 1), Point(kMiB, 8 * kMiB, 5.83, 1),
                                    Point(kMiB, 4 * kMiB, 5.81, 1)};
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 0).inflight_bytes, 8 * kMiB);
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 0, 0.9).inflight_bytes, 4 * kMiB);
}

TEST(KneeOfLoad, LooksAtNoOtherBlockOrEngine) {
  const std::vector<SweepPoint> points = {
      Point(kMiB, 32 * kMiB, 5, 1), Point(kMiB, 16 * kMiB, 3, 1), Point(2 * kMiB, 2 * kMiB, 9, 9),
      Point(kMiB, kMiB, 9, 9, EngineKind::kThreads)};
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 0).inflight_bytes, 32 * kMiB);
}

TEST(KneeOfLoad, OfADiskThatGetsSlowerWithMoreIsItsPeak) {
  const std::vector<SweepPoint> points = {Point(kMiB, 2 * kMiB, 2, 1), Point(kMiB, 4 * kMiB, 5, 1),
                                          Point(kMiB, 8 * kMiB, 4, 1),
                                          Point(kMiB, 64 * kMiB, 3, 1)};
  EXPECT_EQ(KneeOfLoad(points, EngineKind::kIoUring, kMiB, 0).inflight_bytes, 4 * kMiB);
}

TEST(FinalistsOfLoad, AreTheKneeItsRunnerUpAndThePeak) {
  const std::vector<SweepPoint> points = {
      Point(kMiB, 64 * kMiB, 6.0, 1), Point(kMiB, 32 * kMiB, 5.9, 1),
      Point(kMiB, 16 * kMiB, 5.9, 1), Point(kMiB, 8 * kMiB, 5.85, 1),
      Point(kMiB, 4 * kMiB, 4, 1),    Point(4 * kMiB, kMiB, 9, 9)};
  const auto finalists = FinalistsOfLoad(points, EngineKind::kIoUring, kMiB, 0);
  ASSERT_EQ(finalists.size(), 3u);
  EXPECT_EQ(finalists[0].inflight_bytes, 64 * kMiB);
  EXPECT_EQ(finalists[1].inflight_bytes, 16 * kMiB);
  EXPECT_EQ(finalists[2].inflight_bytes, 8 * kMiB);
}

TEST(FinalistsOfLoad, ALuckyShotThatSeemedBestIsLeftForWhatDoesAsWellWithLess) {
  std::vector<SweepPoint> points = {Point(kMiB, 128 * kMiB, 1.28, 1),
                                    Point(kMiB, 32 * kMiB, 1.0, 1), Point(kMiB, 8 * kMiB, 0.99, 1)};
  const auto knee = [](const std::vector<SweepPoint>& of) {
    return KneeOfLoad(of, EngineKind::kIoUring, kMiB, 0).inflight_bytes;
  };
  EXPECT_EQ(knee(points), 128 * kMiB);
  std::vector<SweepPoint> finalists = FinalistsOfLoad(points, EngineKind::kIoUring, kMiB, 0);
  ASSERT_EQ(finalists.size(), 2u);
  finalists[0].gbps[0] = 1.01;  // the median of its turns
  EXPECT_EQ(knee(finalists), 8 * kMiB);
}

TEST(FinalistsOfBursts, AreTheKneeItsRunnerUpAndTheBest) {
  const std::vector<BurstPoint> points = {
      {4 * kMiB, 2.0}, {8 * kMiB, 2.95}, {16 * kMiB, 2.96}, {32 * kMiB, 2.9}, {64 * kMiB, 3.0}};
  const auto finalists = FinalistsOfBursts(points);
  ASSERT_EQ(finalists.size(), 3u);
  EXPECT_EQ(finalists[0].burst_bytes, 8 * kMiB);
  EXPECT_EQ(finalists[1].burst_bytes, 16 * kMiB);
  EXPECT_EQ(finalists[2].burst_bytes, 64 * kMiB);
  EXPECT_EQ(FinalistsOfBursts(std::span(points).first(1)).size(), 1u);
}

TEST(BurstsOf, NoneIsShorterThanABlockAndNoneTriedTwice) {
  const std::vector<int64_t> asked = {4 * kMiB, 8 * kMiB, 16 * kMiB};
  EXPECT_EQ(BurstsOf(asked, kMiB), asked);
  EXPECT_THAT(BurstsOf(asked, 8 * kMiB), testing::ElementsAre(8 * kMiB, 16 * kMiB));
  EXPECT_THAT(BurstsOf(asked, 6 * kMiB), testing::ElementsAre(6 * kMiB, 8 * kMiB, 16 * kMiB));
  EXPECT_THAT(BurstsOf(asked, 64 * kMiB), testing::ElementsAre(64 * kMiB));
}

TEST(KneeOfBursts, IsTheShortestThatCostsNoBandwidth) {
  const std::vector<BurstPoint> points = {
      {4 * kMiB, 2.0}, {8 * kMiB, 2.9}, {16 * kMiB, 2.95}, {32 * kMiB, 3.0}, {64 * kMiB, 2.99}};
  EXPECT_EQ(KneeOfBursts(points).burst_bytes, 16 * kMiB);
  EXPECT_EQ(KneeOfBursts(points, 0.9).burst_bytes, 8 * kMiB);
}

TEST(CheckTuned, ARateOfNothingIsRefused) {
  DeviceProfile device;
  device.directory = "/slow";
  device.read_bytes_per_s = device.write_bytes_per_s = device.mixed_bytes_per_s = 1;
  EXPECT_TRUE(CheckTuned(device).ok());
  device.mixed_bytes_per_s = 0;
  const absl::Status status = CheckTuned(device);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("no mixed loads were completed in '/slow'"));
}

TEST(RunTune, ABudgetThatIsTooShortIsRefusedAtOnce) {
  Job job;
  job.targets = {{"/there/is/none", 0}};
  for (const double budget_s : {0.0, 0.001, 2.4}) {
    const absl::Status status = RunTune(job, {.budget_s = budget_s}, {}).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), testing::HasSubstr("take --budget=3s or more"));
  }
}

TEST(DeepSpeedAio, HasTheSameBlockAndDepth) {
  DeviceProfile device;
  device.block_bytes = kMiB;
  device.inflight_read_bytes = 8 * kMiB;
  const Json aio = DeepSpeedAio(device)["aio"];
  EXPECT_EQ(aio["block_size"], kMiB);
  EXPECT_EQ(aio["queue_depth"], 8);
  EXPECT_EQ(aio["intra_op_parallelism"], 1);
  EXPECT_EQ(aio["single_submit"], false);
  EXPECT_EQ(aio["overlap_events"], true);
}

}  // namespace
}  // namespace forebay
