#include "forebay/train/report/svg_chart.h"

#include <utility>
#include <vector>

#include "forebay/tests/train/report/count_text.h"
#include "forebay/train/report/metrics_table.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

LineChart ChartOf(std::vector<ChartPoint> points) {
  return {.title = "Loss", .lines = {{.name = "loss", .points = std::move(points)}}};
}

TEST(LineChart, MarksEachPointAndSaysItsValue) {
  const std::string svg = DrawLineChart(ChartOf({{1, 5}, {2, 4.25}, {3, 4}}));
  EXPECT_EQ(CountText(svg, "<circle"), 3);
  EXPECT_THAT(svg, HasSubstr("<title>loss, step 2: 4.25</title>"));
  EXPECT_THAT(svg, HasSubstr("<figcaption>Loss</figcaption>"));
  EXPECT_THAT(svg, Not(HasSubstr("legend")));
}

// From x 58 to 694 and y 218 to 10: the corners of the plot.
TEST(LineChart, PutsPointsWhereTheAxesSay) {
  const std::string svg = DrawLineChart(ChartOf({{1, 0}, {3, 5}}));
  EXPECT_THAT(svg, HasSubstr("d=\"M58.0 218.0h0L694.0 10.0\""));
}

TEST(LineChart, BreaksTheLineWhereAPointIsMissing) {
  const std::string svg =
      DrawLineChart(ChartOf({{1, 5}, {2, kMissing}, {3, 4}, {4, 1e300}, {5, 3}, {6, 2}}));
  EXPECT_EQ(CountText(svg, "<circle"), 4);
  EXPECT_EQ(CountText(svg, "h0"), 3);
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(LineChart, SaysWhereThereIsNothingToDraw) {
  for (const std::vector<ChartPoint>& points :
       {std::vector<ChartPoint>(), std::vector<ChartPoint>{{1, kMissing}}}) {
    EXPECT_THAT(DrawLineChart(ChartOf(points)),
                AllOf(HasSubstr("nothing was recorded"), Not(HasSubstr("<svg"))));
  }
}

TEST(LineChart, HasALegendWithLevelsAndEscapesNames) {
  LineChart chart = ChartOf({{1, 1e9}, {2, 2e9}});
  chart.quantity = Quantity::kBytes;
  chart.lines[0].name = "<a> & b";
  chart.levels = {{.name = "plan", .colour = 9, .y = 4e9}};
  const std::string svg = DrawLineChart(chart);
  EXPECT_THAT(svg, HasSubstr("</svg>&lt;a&gt; &amp; b</li>"));
  EXPECT_THAT(svg, HasSubstr("<title>plan: 4 GB</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"level c1\""));
  EXPECT_THAT(svg, HasSubstr("<figcaption>Loss (GB)</figcaption>"));
  EXPECT_THAT(svg, Not(HasSubstr("<a>")));
}

TEST(LineChart, ThinsALongLineAndKeepsItsPeak) {
  std::vector<ChartPoint> points;
  for (int i = 1; i <= 20'000; ++i) points.push_back({1.0 * i, i == 12'345 ? 100.0 : i % 5 + 1.0});
  const std::string svg = DrawLineChart(ChartOf(points));
  EXPECT_LE(CountText(svg, "<circle"), static_cast<int>(kMostChartPoints));
  EXPECT_THAT(svg, HasSubstr("step 12345: 100"));
}

TEST(StackedChart, HasABarForEachStepWhosePartsStandOnEachOther) {
  StackedChart chart = {.title = "Time", .quantity = Quantity::kSeconds};
  chart.part_names = {"compute", "wait", "never"};
  chart.panels = {{.name = "a", .bars = {{1, {1, 0, 0}}, {2, {2, 2, 0}}}},
                  {.name = "b", .bars = {{1, {1, 1, 0}}}}};
  const std::string svg = DrawStackedChart(chart);
  EXPECT_EQ(CountText(svg, "class=\"bar\""), 3);
  EXPECT_THAT(svg, HasSubstr("step 2: 4 s\ncompute: 2 s\nwait: 2 s"));
  // The plot has 208 units for 4 seconds: the upper half stands on the lower one.
  EXPECT_THAT(svg, HasSubstr("y=\"114.00\" width=\"317.00\" height=\"104.00\""));
  EXPECT_THAT(svg, HasSubstr("y=\"10.00\" width=\"317.00\" height=\"104.00\""));
  EXPECT_EQ(CountText(svg, "class=\"plot\""), 2);
  EXPECT_THAT(svg, Not(HasSubstr("never</li>")));
}

}  // namespace
}  // namespace forebay
