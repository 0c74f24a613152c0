#include "forebay/tools/swap_bench/bench_table.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

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

TEST(SizeText, IsWhatTheFlagTakes) {
  EXPECT_EQ(SizeText(1 << 20), "1M");
  EXPECT_EQ(SizeText(256 << 10), "256K");
  EXPECT_EQ(SizeText(int64_t{2} << 30), "2G");
  EXPECT_EQ(SizeText(12345), "12345");
}

TEST(ReportText, HasFiguresVerdictsAndNotes) {
  const std::string text = ReportText(Report(), "1.2.3");
  EXPECT_THAT(text, HasSubstr("swap-bench 1.2.3"));
  EXPECT_THAT(text, HasSubstr("(1.50..2.50)"));
  EXPECT_THAT(text, HasSubstr("device-bound; and more"));
  EXPECT_THAT(text, HasSubstr("first 10 s 2.25 GB/s, last 10 s 1.12 GB/s"));
  EXPECT_THAT(text, HasSubstr("kernel counters match 100.2 %"));
  EXPECT_THAT(text, HasSubstr("steady in 2 of 3 repeats"));
  EXPECT_THAT(text, HasSubstr("note: a note"));
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

TEST(ComparisonText, ListsWhatHasNoCounterpart) {
  ReportComparison comparison;
  comparison.cells.push_back({.key = Report().runs[0].key, .ratio = 0.5});
  comparison.only_before.push_back({"/gone", {LoadOp::kRead, 100}, 1 << 20, 1 << 20, "libaio"});
  const std::string text = ComparisonText(comparison);
  EXPECT_THAT(text, HasSubstr("0.500"));
  EXPECT_THAT(text, HasSubstr("only before: /gone read 1M 1M libaio"));
}

}  // namespace
}  // namespace forebay
