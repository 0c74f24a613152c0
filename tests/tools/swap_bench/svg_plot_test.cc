#include "forebay/tools/swap_bench/svg_plot.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

int Count(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

CellResult RunOf(const std::string& device, double gbps) {
  CellResult run;
  run.key = {device, {LoadOp::kRead, 100}, 1 << 20, 8 << 20, "io_uring"};
  run.gbps.median = gbps;
  run.series = {{0.1, 100'000'000}, {0.2, 200'000'000}};
  for (int64_t ns = 1000; ns < 10'000'000; ns *= 2) run.latency.Record(ns);
  return run;
}

TEST(ReportSvg, DrawsTwoLinesForEachRun) {
  BenchReport report;
  report.runs = {RunOf("/a", 1), RunOf("/b<&>", 2)};
  const std::string svg = ReportSvg(report);
  EXPECT_THAT(svg, testing::StartsWith(kSvgMark));
  EXPECT_EQ(Count(svg, "<polyline"), 4);
  EXPECT_THAT(svg, HasSubstr("read /b&lt;&amp;&gt;"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(ReportSvg, HasNoCharacterThatXmlForbids) {
  BenchReport report;
  report.runs = {RunOf("/a\x01\n\x1f\x7f\xc3\xa4", 1)};
  EXPECT_THAT(ReportSvg(report), HasSubstr("read /a????\xc3\xa4"));
}

TEST(ReportSvg, OfARunWithoutFiguresIsStillAPicture) {
  BenchReport report;
  report.runs.resize(1);
  const std::string svg = ReportSvg(report);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SweepSvg, HasAFieldForEachPoint) {
  SweepReport sweep;
  for (const int64_t block : {1 << 20, 2 << 20}) {
    for (const int64_t inflight : {4 << 20, 8 << 20, 16 << 20}) {
      CellResult run = RunOf("/a", static_cast<double>(inflight) / 1e7);
      run.key.block_bytes = block;
      run.key.inflight_bytes = inflight;
      sweep.report.runs.push_back(run);
    }
  }
  const std::string svg = SweepSvg(sweep);
  EXPECT_EQ(Count(svg, "<rect"), 6 + 1);  // and the background
  EXPECT_THAT(svg, HasSubstr(">16M<"));
  EXPECT_THAT(svg, HasSubstr(">2M<"));
}

}  // namespace
}  // namespace forebay
