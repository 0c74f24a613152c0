#include "forebay/measure/runs/run_job.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/measure/load/kernel_counters.h"
#include "forebay/measure/runs/sweep.h"
#include "forebay/tests/measure/bench_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Contains;
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

TEST(RunJob, OneFolderTwiceIsRefusedHoweverItIsWritten) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.targets.push_back({folder.path() + "/.", 2});
  const absl::Status status = RunJob(job, {}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("are one folder"));
}

TEST(RunJob, WhatWasAskedForAndNotHadIsAReason) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.loads = {{LoadOp::kRead, 100}};
  job.numa_node = 1000;
  auto report = RunJob(job, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->runs[0].reasons, Contains(HasSubstr("NUMA node 1000")));
  EXPECT_THAT(report->runs[0].verdict, Contains(HasSubstr("NUMA node 1000")));
  job.numa_node = -1;
  job.pages = BenchPages::kReservedHuge;
  job.block_bytes = 1 << 20;
  job.size_bytes = 8 << 20;
  report = RunJob(job, {});
  ASSERT_TRUE(report.ok()) << report.status();
  const bool missing = report->runs[0].pages != "huge";
  EXPECT_EQ(std::ranges::any_of(report->runs[0].reasons,
                                [](const std::string& reason) {
                                  return reason.find("vm.nr_hugepages") != std::string::npos;
                                }),
            missing);
}

TEST(MissingHugePages, AreToldAsWhatToReserve) {
  EXPECT_EQ(MissingHugePages(8 << 20, 8 << 20), "");
  EXPECT_THAT(MissingHugePages(8 << 20, 6 << 20),
              AllOf(HasSubstr("2.00 MiB of 8.00 MiB"), HasSubstr("Reserve 1 page more")));
  EXPECT_THAT(MissingHugePages(8 << 20, 0), HasSubstr("Reserve 4 pages more"));
}

// Two buffers of 3 MiB have one huge page each, and none in their tails together.
TEST(BenchSession, TheTailsOfBuffersMakeNoHugePage) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  job.threads = 2;
  job.depth = 6;
  job.block_bytes = 1 << 20;
  job.size_bytes = 12 << 20;
  const auto session = BenchSession::Open(job, {});
  ASSERT_TRUE(session.ok()) << session.status();
  const PageTally& pages = (*session)->pages();
  EXPECT_EQ(pages.reserved_huge_bytes + pages.transparent_huge_bytes + pages.base_bytes, 6 << 20);
  EXPECT_EQ((*session)->huge_bytes(), 4 << 20);
}

TEST(MemoryForBuffers, HasReservedHugePagesOnlyWhereTheyAreAskedFor) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& path, std::string_view text) {
    ASSERT_TRUE(MakeDirectories(root.path() + path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(root.path() + path, text).ok());
  };
  write("/proc/meminfo", "MemAvailable:    1048576 kB\n");
  write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n");
  EXPECT_EQ(MemoryForBuffers(BenchPages::kReservedHuge, root.path()), int64_t{2} << 30);
  EXPECT_EQ(MemoryForBuffers(BenchPages::kTransparentHuge, root.path()), int64_t{1} << 30);
  EXPECT_EQ(MemoryForBuffers(BenchPages::kBase, root.path()), int64_t{1} << 30);
}

TEST(RunJob, AStripeThatIsPartlyInMemoryHasNoBound) {
  const TemporaryFolder folder;
  struct statfs info = {};
  const bool disk = ::statfs(folder.path().c_str(), &info) == 0 && info.f_type != TMPFS_MAGIC;
  if (!disk || ::statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "needs a disk and a tmpfs";
  }
  const TemporaryFolder memory("/dev/shm");
  Job job = SmallJob(folder.path());
  job.targets.push_back({memory.path(), 0});
  job.loads = {{LoadOp::kRead, 100}};
  const auto report = RunJob(job, {});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->runs.size(), 3u);
  EXPECT_EQ(report->runs[0].num_files_in_memory, 0);
  EXPECT_TRUE(report->runs[1].in_memory());
  EXPECT_EQ(report->runs[2].num_files_in_memory, 1);
  EXPECT_FALSE(report->runs[2].in_memory());
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

TEST(RunInTurns, AllSettingsTakeTheirTurnsAndKeepTheirOwnFigures) {
  const TemporaryFolder folder;
  Job job = SmallJob(folder.path());
  const auto session = BenchSession::Open(job, {});
  ASSERT_TRUE(session.ok()) << session.status();
  job.seconds = 0.02;
  job.warmup_s = 0;
  std::vector<CellSetting> settings(2, {job, {{LoadOp::kRead, 100}, {0}}, EngineKind::kThreads});
  settings[1].cell.load = {LoadOp::kWrite, 0};
  settings[1].job.depth = 2;
  std::string order;
  BenchHooks hooks;
  hooks.beside = [&](const BenchCell& cell) {
    order += cell.load.op == LoadOp::kRead ? 'r' : 'w';
    return absl::OkStatus();
  };
  int turns = 0;
  const auto results = RunInTurns(
      **session, settings, [&](auto&) { return turns++ < 3; }, hooks);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(order, "rwrwrw");
  ASSERT_EQ(results->size(), 2u);
  EXPECT_EQ((*results)[0].key.inflight_bytes, 4 * kTestBlockBytes);
  EXPECT_EQ((*results)[1].key.inflight_bytes, 2 * kTestBlockBytes);
  for (const CellResult& result : *results) {
    EXPECT_LE(result.gbps.min, result.gbps.median);
    EXPECT_GE(result.seconds, 3 * 0.02);
  }
  const auto none = RunInTurns(**session, settings, [](auto&) { return false; }, {});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
}

// Of reads and writes of a file that holds many blocks of the usual sizes.
Job SearchJob(const std::string& folder) {
  Job job = SmallJob(folder);
  job.size_bytes = int64_t{64} << 20;
  job.loads = {{LoadOp::kRead, 100}, {LoadOp::kWrite, 0}};
  job.engine = EngineKind::kThreads;
  return job;
}

TEST(RunSweep, TheBestPointsAreMeasuredAgainAsOftenAsTheBudgetHasTimeFor) {
  const TemporaryFolder folder;
  const Job job = SearchJob(folder.path());
  SweepOptions options;
  options.block_bytes = {1 << 20};
  options.inflight_bytes = {8 << 20};
  // As long as this machine needs for a turn, whatever else it does.
  absl::StatusOr<SweepReport> sweep;
  for (double budget_s = 2; budget_s <= 64; budget_s *= 2) {
    options.budget_s = budget_s;
    sweep = RunSweep(job, options, {});
    ASSERT_TRUE(sweep.ok()) << sweep.status();
    if (sweep->best[0].knee.num_turns > 0) break;
  }
  const SweepPoint& knee = sweep->best[0].knee;
  ASSERT_GE(knee.num_turns, 1);
  ASSERT_EQ(knee.spread.size(), 2u);
  for (size_t load = 0; load < 2; ++load) {
    EXPECT_EQ(knee.gbps[load], knee.spread[load].median);
    EXPECT_LE(knee.spread[load].min, knee.gbps[load]);
    EXPECT_GE(knee.spread[load].max, knee.gbps[load]);
  }
  EXPECT_EQ(sweep->best[0].note.empty(), knee.num_turns == 3);

  // Nine points, of which the shortest passes take all of it.
  options.budget_s = 1;
  options.inflight_bytes.clear();
  for (int64_t mib = 1; mib <= 8; ++mib) options.inflight_bytes.push_back(mib << 20);
  sweep = RunSweep(job, options, {});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_EQ(sweep->best[0].knee.num_turns, 0);
  EXPECT_THAT(sweep->report.warnings, Contains(HasSubstr("Take a longer --budget")));
}

TEST(RunSweep, TheBytesWrittenAreThoseOfEveryPassAsTheKernelCountsThem) {
  const TemporaryFolder folder;
  SweepOptions options;
  options.budget_s = 2;
  options.block_bytes = {1 << 20};
  options.inflight_bytes = {8 << 20};
  const std::optional<IoAccount> before = IoAccountOfProcess();
  const auto sweep = RunSweep(SearchJob(folder.path()), options, {});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  const std::optional<IoAccount> after = IoAccountOfProcess();
  if (!before.has_value() || after->write_bytes == before->write_bytes) {
    GTEST_SKIP() << "the kernel counts no bytes that this process writes to this file system";
  }
  const auto counted = static_cast<double>(after->write_bytes - before->write_bytes);
  EXPECT_NEAR(static_cast<double>(WrittenBytes(sweep->report)) / counted, 1, 0.01);
}

TEST(RunSweep, EveryPointHasTheFiguresOfItsOwnRuns) {
  const TemporaryFolder folder;
  const Job job = SearchJob(folder.path());
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

// A search measures one folder at a time, so that each file has room for as much as if it were
// alone.
TEST(RunSweep, SeveralFoldersLeaveNoPointOut) {
  const TemporaryFolder a;
  const TemporaryFolder b;
  Job job = SmallJob(a.path());
  job.targets.push_back({b.path(), 0});
  job.size_bytes = int64_t{128} << 20;
  job.loads = {{LoadOp::kRead, 100}};
  job.engine = EngineKind::kThreads;
  SweepOptions options;
  options.budget_s = 1;
  options.block_bytes = {1 << 20};
  options.inflight_bytes = {64 << 20};
  const auto sweep = RunSweep(job, options, {});
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  for (const SweepBest& best : sweep->best) {
    EXPECT_TRUE(std::ranges::any_of(best.points, [](const SweepPoint& point) {
      return point.inflight_bytes == int64_t{64} << 20;
    })) << best.device;
  }
}

}  // namespace
}  // namespace forebay
