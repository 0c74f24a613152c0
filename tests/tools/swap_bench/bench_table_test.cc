#include "forebay/tools/swap_bench/bench_table.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

BenchReport Report() {
  CellResult run;
  run.key = {"/a, \"b\"", {LoadOp::kWrite, 0}, 1 << 20, 32 << 20, "io_uring"};
  run.gbps = {2, 1.5, 2.5};
  run.bytes = 1;
  run.latency.Record(2'000'000);
  run.flushed_gbps = Spread{1.9, 1.4, 2.4};
  run.first10_gbps = 2.25;
  run.last10_gbps = 1.125;
  run.disk_ratio = 1.002;
  run.steady_repeats = 2;
  run.verdict = {"device-bound", "and more"};
  BenchReport report;
  report.devices.push_back({.path = "/a", .fs = "ext4", .device = "vda"});
  report.runs = {run};
  report.warnings = {"a note"};
  return report;
}

TEST(ReportText, HasFiguresVerdictsAndNotes) {
  const std::string text = ReportText(Report(), "1.2.3");
  EXPECT_THAT(text, HasSubstr("swap-bench 1.2.3"));
  EXPECT_THAT(text, HasSubstr("(1.50..2.50)"));
  EXPECT_THAT(text, HasSubstr("device-bound; and more"));
  EXPECT_THAT(text, HasSubstr("first 10 s 2.25 GB/s, last 10 s 1.12 GB/s"));
  EXPECT_THAT(text, HasSubstr("the kernel counted 100.2 % of these bytes"));
  EXPECT_THAT(text, HasSubstr("steady in 2 of 3 repeats"));
  EXPECT_THAT(text, HasSubstr("note: a note"));
}

TEST(ReportText, TellsHowWarmTheDriveBecame) {
  BenchReport report = Report();
  EXPECT_THAT(ReportText(report, "1"), Not(HasSubstr(" C afterwards")));
  report.devices[0].heat = DriveHeat{41.4, 80};
  report.devices[0].heat_afterwards = DriveHeat{62.5, 80};
  EXPECT_THAT(ReportText(report, "1"), HasSubstr(", 41 C, 62 C afterwards\n"));
}

TEST(ReportText, ASinglePassHasNoSpreadAndTwoAlikeHaveOne) {
  BenchReport report = Report();
  report.runs[0].gbps = SpreadOf({2});
  EXPECT_THAT(ReportText(report, "1"), Not(HasSubstr("(min..max)")));
  report.runs[0].gbps = SpreadOf({2, 2});
  EXPECT_THAT(ReportText(report, "1"), HasSubstr("(2.00..2.00)"));
}

TEST(ReportText, CountersThatDoNotAgreeDoNotMatch) {
  BenchReport report = Report();
  report.runs[0].disk_ratio = 2.877;
  EXPECT_THAT(ReportText(report, "1"), Not(HasSubstr("match")));
  report.runs[0].disk_ratio = 1.0;
  report.runs[0].process_ratio = 0.67;
  EXPECT_THAT(ReportText(report, "1"), Not(HasSubstr("match")));
}

TEST(ReportText, LatenciesHaveAUnitAndTurnsAColumnWhereThereAreAny) {
  BenchReport report = Report();
  EXPECT_THAT(ReportText(report, "1"), HasSubstr("p99.9ms  maxms"));
  EXPECT_THAT(ReportText(report, "1"), Not(HasSubstr("turn")));
  report.runs[0].key.burst_bytes = 16 << 20;
  const std::string text = ReportText(report, "1");
  EXPECT_THAT(text, testing::ContainsRegex("inflt +turn +engine"));
  EXPECT_THAT(text, testing::ContainsRegex("32M +16M +io_uring"));
}

TEST(RunsText, ASearchSaysHowLongItsPassesWere) {
  BenchReport report = Report();
  EXPECT_THAT(RunsText(report, "1"), HasSubstr("3 s measured after 0.5 s of warm-up, 3 inter"));
  report.budget_s = 50;
  report.runs[0].seconds = 0.5;
  report.runs.push_back(report.runs[0]);
  report.runs[1].seconds = 1.25;
  EXPECT_THAT(RunsText(report, "1"),
              HasSubstr("0.50 to 1.25 s measured of each setting, the best in "
                        "interleaved turns"));
  EXPECT_THAT(RunsText(report, "1"), HasSubstr("a budget of 50 s for each folder"));
}

TEST(RunsText, ASinglePassHasNoSpread) {
  BenchReport report = Report();
  EXPECT_THAT(RunsText(report, "1"), HasSubstr("(min..max)"));
  report.job.repeats = 1;
  report.runs[0].gbps = {2, 2, 2};
  EXPECT_THAT(RunsText(report, "1"), Not(HasSubstr("..")));
  EXPECT_THAT(RunsText(report, "1"), HasSubstr("GB/s  +flush"));
}

TEST(RunsText, TheLastTurnsOfASearchHaveASpreadBesideItsSinglePasses) {
  BenchReport report = Report();
  report.job.repeats = 1;
  report.runs.push_back(report.runs[0]);
  report.runs[1].gbps = {2, 2, 2};
  const std::string text = RunsText(report, "1");
  EXPECT_THAT(text, testing::ContainsRegex(" 2.00 +[(]1.50..2.50[)]"));
  EXPECT_THAT(text, testing::ContainsRegex(" 2.00 +- "));
}

TEST(RunsText, SaysWhatAllOfItWrote) {
  BenchReport report = Report();
  report.filled_bytes = 1'000'000'000;
  report.runs[0].written_bytes = 500'000'000;
  report.runs.push_back(report.runs[0]);
  EXPECT_THAT(RunsText(report, "1"),
              HasSubstr("wear: this wrote 2.00 GB in all, 1.00 GB of it to fill the file\n"));
  report.devices[0].fs = "tmpfs";
  EXPECT_THAT(RunsText(report, "1"), Not(HasSubstr("wear")));
}

TEST(ProbeCsv, HasARowForEachEngineOnEachFolder) {
  ProbeReport probe;
  probe.devices.resize(2);
  probe.devices[0].storage.path = "/a,b";
  probe.devices[0].engines = {{EngineKind::kIoUring, true, "io_uring, direct I/O"},
                              {EngineKind::kLibaio, false, "no"}};
  probe.devices[1].engines = {{EngineKind::kBuffered, true, "yes"}};
  const std::string csv = ProbeCsv(probe);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 4);
  EXPECT_THAT(csv, HasSubstr("\n\"/a,b\",,false,io_uring,true,\"io_uring, direct I/O\"\n"));
}

TEST(ReportText, WhatIsNotKnownIsADash) {
  const std::string text = ReportText(Report(), "1");
  const size_t row = text.find("/a, \"b\"");
  ASSERT_NE(row, std::string::npos);
  EXPECT_THAT(text.substr(row, text.find('\n', row) - row), HasSubstr("  -  "));
}

TEST(ReportCsv, QuotesFieldsAndHasAsManyAsItsHeader) {
  const std::string csv = ReportCsv(Report(), std::vector<double>{50, 99.9});
  const size_t line = csv.find('\n');
  const std::string header = csv.substr(0, line);
  const std::string row = csv.substr(line + 1);
  EXPECT_THAT(header, HasSubstr("p50_us,p999_us,max_us"));
  EXPECT_THAT(row, testing::StartsWith("\"/a, \"\"b\"\"\",write,0,"));
  // The comma within the first field is no separator.
  EXPECT_EQ(std::ranges::count(row, ','), std::ranges::count(header, ',') + 1);
}

TEST(ComparisonText, SinglePassesHaveNoNoise) {
  ReportComparison comparison;
  comparison.cells.push_back({.key = Report().runs[0].key,
                              .before = {2, 2, 2},
                              .after = {1, 1, 1},
                              .ratio = 0.5,
                              .least_ratio = 0.5,
                              .most_ratio = 0.5});
  EXPECT_THAT(ComparisonText(comparison), Not(HasSubstr("..")));
  comparison.cells[0].after = {1, 0.5, 1};
  EXPECT_THAT(ComparisonText(comparison), HasSubstr("(0.500..0.500)"));
}

TEST(ComparisonText, ListsWhatHasNoCounterpart) {
  ReportComparison comparison;
  comparison.cells.push_back({.key = Report().runs[0].key, .ratio = 0.5});
  comparison.cells.push_back({.key = {"/new", {LoadOp::kRead, 100}, 1, 1, "libaio"}});
  comparison.only_before.push_back({"/gone", {LoadOp::kRead, 100}, 1 << 20, 1 << 20, "libaio"});
  const std::string text = ComparisonText(comparison);
  EXPECT_THAT(text, HasSubstr("0.500"));
  EXPECT_THAT(text, testing::ContainsRegex("- +\\(-\\.\\.-\\)"));
  EXPECT_THAT(text, HasSubstr("only before: /gone read 1M 1M libaio"));
}

}  // namespace
}  // namespace forebay
