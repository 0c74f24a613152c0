#include "forebay/tools/swap_bench/fio_check.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Not;

constexpr int64_t kSize = int64_t{1} << 30;

TEST(FioArguments, AreTheSameJob) {
  Job job;
  job.block_bytes = 1 << 20;
  job.depth = 32;
  const auto arguments =
      FioArguments(job, {LoadOp::kMixed, 70}, EngineKind::kIoUring, "/proc/1/fd/3", kSize, true);
  EXPECT_THAT(
      arguments,
      AllOf(Contains("--filename=/proc/1/fd/3"), Contains("--rw=rw"), Contains("--rwmixread=70"),
            Contains("--ioengine=io_uring"), Contains("--bs=1048576"), Contains("--iodepth=32"),
            Contains("--numjobs=1"), Contains("--runtime=3000ms"), Contains("--ramp_time=500ms"),
            Contains("--fixedbufs"), Contains("--registerfiles"), Contains("--mem=mmaphuge"),
            Contains("--direct=1"), Contains("--allow_file_create=0"),
            Contains("--scramble_buffers=0")));
}

TEST(FioArguments, ASynchronousEngineHasAJobForEachOperationInFlight) {
  Job job;
  job.pattern = AccessPattern::kRandom;
  const auto arguments =
      FioArguments(job, {LoadOp::kRead, 100}, EngineKind::kThreads, "/f", kSize, false);
  EXPECT_THAT(arguments, AllOf(Contains("--ioengine=psync"), Contains("--numjobs=32"),
                               Contains("--iodepth=1"), Contains("--rw=randread"),
                               Not(Contains("--fixedbufs")), Not(Contains("--mem=mmaphuge"))));
}

TEST(RunInPages, DoesWithoutHugePagesThatOthersHaveTaken) {
  std::vector<bool> tried;
  const auto run = [&](bool huge_pages) -> absl::StatusOr<FioOutcome> {
    tried.push_back(huge_pages);
    return FioOutcome{.exit_code = huge_pages ? 1 : 0, .output = "{}"};
  };
  const absl::StatusOr<FioOutcome> outcome = RunInPages(true, run);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_FALSE(outcome->huge_pages);
  EXPECT_THAT(tried, testing::ElementsAre(true, false));
}

TEST(RunInPages, TellsWhatFioSaysBeforeItsDocument) {
  const auto status = [](const std::string& output) {
    return RunInPages(false,
                      [&](bool) -> absl::StatusOr<FioOutcome> {
                        return FioOutcome{.exit_code = 1, .output = output};
                      })
        .status();
  };
  EXPECT_EQ(ExitCodeOf(status("fio: no such engine\n{\n}")), ExitCode::kEnvironment);
  EXPECT_EQ(
      MessageOf(status("fio: no such engine\n{\n}")),
      "fio ended with exit code 1: fio: no such engine. Leave --fio out to measure without it");
  EXPECT_THAT(MessageOf(status("")), testing::HasSubstr("it does not say why"));
}

TEST(FioText, IsALineForEachRunThatHasFigures) {
  std::vector<CellResult> runs(2);
  EXPECT_EQ(FioText(runs), "");
  runs[1].key = {"/nvme", {LoadOp::kRead, 100}, 1 << 20, 32 << 20, "io_uring"};
  runs[1].gbps.median = 1.5;
  runs[1].fio = FioFigures{{1.6, 1.5, 1.7}, "4 KiB pages"};
  EXPECT_EQ(FioText(runs),
            "fio read /nvme: 1.60 GB/s (1.50..1.70), in 4 KiB pages; swap-bench has 0.938 of it\n");
}

TEST(FioText, HasNoRatioToNothing) {
  std::vector<CellResult> runs(1);
  runs[0].key = {"/nvme", {LoadOp::kRead, 100}, 1 << 20, 32 << 20, "io_uring"};
  runs[0].gbps.median = 1.5;
  runs[0].fio = FioFigures{{0, 0, 0}, "4 KiB pages"};
  EXPECT_EQ(FioText(runs), "fio read /nvme: 0.00 GB/s, in 4 KiB pages\n");
}

TEST(FioBytesPerSecond, AddsBothDirections) {
  const auto rate = FioBytesPerSecond(
      "note: something\n{\"jobs\": [{\"read\": {\"bw_bytes\": 100}, \"write\": {\"bw_bytes\": "
      "50}}]}");
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(*rate, 150);
}

TEST(FioBytesPerSecond, RefusesWhatIsNoResult) {
  for (const char* text : {"", "nothing", "{}", "{\"jobs\": []}", "{\"jobs\": [{\"read\": 3}]}"}) {
    EXPECT_FALSE(FioBytesPerSecond(text).ok()) << text;
  }
}

}  // namespace
}  // namespace forebay
