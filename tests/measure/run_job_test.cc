#include "forebay/measure/run_job.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/measure/sweep.h"
#include "forebay/tests/measure/bench_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST(CellsOf, EveryFolderAloneAndSeveralStriped) {
  Job job;
  job.targets = {{"/a", 0}};
  EXPECT_EQ(CellsOf(job).size(), 3u);
  job.targets.push_back({"/b", 0});
  const std::vector<BenchCell> cells = CellsOf(job);
  ASSERT_EQ(cells.size(), 9u);
  EXPECT_EQ(cells[0].targets, std::vector<int>{0});
  EXPECT_EQ(cells[1].targets, std::vector<int>{1});
  EXPECT_EQ(cells[2].targets, (std::vector<int>{0, 1}));
}

TEST(RunJob, MeasuresEveryCellAndLeavesNothingBehind) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  Job job = SmallJob(a.path());
  job.targets.push_back({b.path(), 2});
  job.verify = true;
  job.repeats = 2;
  std::vector<std::string> phases;
  BenchHooks hooks;
  hooks.progress = [&](std::string_view phase, double, double) {
    if (phases.empty() || phases.back() != phase) phases.emplace_back(phase);
  };
  int num_beside = 0;
  hooks.beside = [&](const BenchCell&) {
    ++num_beside;
    return absl::OkStatus();
  };
  const auto report = RunJob(job, hooks);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->runs.size(), 9u);
  EXPECT_EQ(num_beside, 18);
  EXPECT_EQ(report->devices.size(), 2u);
  for (const CellResult& run : report->runs) {
    EXPECT_EQ(run.key.block_bytes, job.block_bytes);
    EXPECT_EQ(run.key.inflight_bytes, job.block_bytes * job.depth);
    ASSERT_TRUE(run.verified.has_value());
    EXPECT_GT(run.verified->num_blocks, 0);
    EXPECT_EQ(run.verified->num_bad(), 0) << run.verified->first_problem;
    EXPECT_FALSE(run.verdict.empty());
  }
  EXPECT_EQ(report->runs[2].key.device, a.path() + "+" + b.path());
  EXPECT_TRUE(CheckVerified(*report).ok());
  EXPECT_EQ(phases.front(), "filling a file in " + a.path());
  EXPECT_TRUE(std::filesystem::is_empty(a.path()));
  EXPECT_TRUE(std::filesystem::is_empty(b.path()));
}

TEST(RunJob, AStopIsHeardInEveryPhase) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.verify = true;
  for (const char* phase : {"filling", "read ", "write ", "reading back", "mixed50 "}) {
    std::string now;
    BenchHooks hooks;
    hooks.progress = [&](std::string_view at, double, double) { now = at; };
    hooks.stop = [&] { return now.starts_with(phase); };
    EXPECT_EQ(ExitCodeOf(RunJob(job, hooks).status()), ExitCode::kInterrupted) << phase;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << phase;
  }
}

TEST(RunJob, AnErrorBesideEndsIt) {
  const TemporaryFolder folder;
  BenchHooks hooks;
  hooks.beside = [](const BenchCell&) { return EnvironmentError("the other program failed"); };
  const auto report = RunJob(SmallJob(folder.path()), hooks);
  EXPECT_EQ(MessageOf(report.status()), "the other program failed");
}

TEST(RunJob, AFolderThatIsNoneIsBadInput) {
  EXPECT_EQ(ExitCodeOf(RunJob(SmallJob("/there/is/none"), {}).status()), ExitCode::kBadInput);
}

TEST(RunJob, BuffersLargerThanTheMemoryDoNotFit) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.block_bytes = int64_t{1} << 30;
  job.depth = 128;
  job.size_bytes = int64_t{1} << 39;
  const absl::Status status = RunJob(job, {}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
}

TEST(CheckVerified, NamesTheFolderAndTheFirstProblem) {
  BenchReport report;
  report.runs.resize(2);
  report.runs[1].key.device = "/nvme";
  report.runs[1].verified = PatternTally{.num_blocks = 10, .num_stale = 3, .first_problem = "why"};
  const absl::Status status = CheckVerified(report);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("'/nvme' gave back 3 of 10 blocks"));
  EXPECT_THAT(MessageOf(status), HasSubstr("why"));
}

TEST(RunSweep, EveryPointHasTheFiguresOfItsOwnRuns) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.size_bytes = int64_t{64} << 20;
  job.loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}};
  job.engine = EngineKind::kThreads;
  SweepOptions options;
  options.budget_s = 1;
  options.block_bytes = {512 << 10};
  options.inflight_bytes = {8 << 20, 16 << 20};
  const auto sweep = RunSweep(job, options, {});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  const std::vector<SweepPoint>& points = sweep->best[0].points;
  ASSERT_EQ(points.size(), 4u);
  ASSERT_EQ(sweep->report.runs.size(), 8u);
  for (size_t i = 0; i < points.size(); ++i) {
    ASSERT_EQ(points[i].gbps.size(), 2u);
    EXPECT_EQ(points[i].gbps[0], sweep->report.runs[2 * i].gbps.median);
    EXPECT_EQ(points[i].gbps[1], sweep->report.runs[2 * i + 1].gbps.median);
  }
}

}  // namespace
}  // namespace forebay
