#include "forebay/train/report/chart_axis.h"

#include <limits>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

std::vector<std::string> Labels(const ChartAxis& axis) {
  std::vector<std::string> labels;
  for (const double tick : axis.Ticks()) labels.push_back(axis.LabelOf(tick));
  return labels;
}

TEST(ChartAxis, HasRoundTicksAroundItsValues) {
  EXPECT_THAT(Labels(ChartAxis(Quantity::kNumber, 2.66, 5.77)),
              ElementsAre("2", "3", "4", "5", "6"));
  EXPECT_THAT(Labels(ChartAxis(Quantity::kNumber, 0, 0.42)),
              ElementsAre("0", "0.1", "0.2", "0.3", "0.4", "0.5"));
  EXPECT_THAT(Labels(ChartAxis(Quantity::kNumber, -1, 1)),
              ElementsAre("-1.0", "-0.5", "0", "0.5", "1.0"));
}

TEST(ChartAxis, HasAUnitThatSuitsItsValues) {
  const ChartAxis bytes(Quantity::kBytes, 0, 3.2e9);
  EXPECT_EQ(bytes.unit(), "GB");
  EXPECT_THAT(Labels(bytes), ElementsAre("0", "1", "2", "3", "4"));
  EXPECT_EQ(bytes.TextOf(1'234'500'000), "1.234 GB");
  EXPECT_EQ(ChartAxis(Quantity::kBytes, 0, 0).unit(), "B");
  EXPECT_EQ(ChartAxis(Quantity::kSeconds, 0, 0.08).unit(), "ms");
  EXPECT_EQ(ChartAxis(Quantity::kSeconds, 0, 12).unit(), "s");
  const ChartAxis speed(Quantity::kNumber, 0, 110'000);
  EXPECT_EQ(speed.unit(), "thousand");
  EXPECT_THAT(Labels(speed), ElementsAre("0", "50", "100", "150"));
  EXPECT_EQ(ChartAxis(Quantity::kNumber, 0, 2000).unit(), "");
}

// A value may be beyond the last tick by so little that nobody sees it.
constexpr double kUnseen = 1e-8;

// Whatever a line says, an axis has a range and a few ticks.
TEST(ChartAxis, OfAnyValuesThatAreDrawnIsFinite) {
  for (const double least : {0.0, 5.0, -5.0, 1e-300, 1e18, -kMostDrawn, kMostDrawn}) {
    for (const double most : {0.0, 5.0, 5.0 + 1e-15, 1e18, 1e18 + 200, kMostDrawn}) {
      if (most < least) continue;
      const ChartAxis axis(Quantity::kNumber, least, most);
      EXPECT_LT(axis.begin(), axis.end());
      EXPECT_GE(axis.ShareOf(least), -kUnseen);
      EXPECT_LE(axis.ShareOf(most), 1 + kUnseen);
      EXPECT_GE(axis.Ticks().size(), 2u) << least << " " << most;
      EXPECT_LE(axis.Ticks().size(), 9u) << least << " " << most;
      for (const std::string& label : Labels(axis)) EXPECT_LE(label.size(), 10u) << label;
    }
  }
}

TEST(ChartAxis, OfStepsHasWholeNumbers) {
  EXPECT_THAT(Labels(ChartAxis::OfSteps(1, 4)), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(Labels(ChartAxis::OfSteps(7, 7)), ElementsAre("7", "8"));
  EXPECT_THAT(Labels(ChartAxis::OfSteps(0.5, 40.5)), ElementsAre("10", "20", "30", "40"));
  EXPECT_THAT(Labels(ChartAxis::OfSteps(0, 100'000)),
              ElementsAre("0", "20000", "40000", "60000", "80000", "100000"));
}

TEST(IsDrawn, LeavesOutWhatBreaksArithmetic) {
  EXPECT_TRUE(IsDrawn(-1e100));
  EXPECT_FALSE(IsDrawn(1e101));
  EXPECT_FALSE(IsDrawn(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(IsDrawn(std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace
}  // namespace forebay
