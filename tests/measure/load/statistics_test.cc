#include "forebay/measure/load/statistics.h"

#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(SpreadOf, TakesTheMiddleAndTheEnds) {
  const Spread odd = SpreadOf({3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 3);
  EXPECT_EQ(SpreadOf({1, 2, 4, 100}).median, 3);
  EXPECT_EQ(SpreadOf({}).median, 0);
}

TEST(SpreadOf, KnowsWhetherItIsOfSeveral) {
  EXPECT_FALSE(SpreadOf({}).is_of_several());
  EXPECT_FALSE(SpreadOf({2}).is_of_several());
  EXPECT_TRUE(SpreadOf({2, 2}).is_of_several());
  // As a file gives it.
  EXPECT_TRUE((Spread{2, 1, 3}).is_of_several());
  EXPECT_FALSE((Spread{2, 2, 2}).is_of_several());
}

TEST(MedianIndex, IsWhereTheMedianStands) {
  EXPECT_EQ(MedianIndex(std::vector<double>{5, 1, 3}), 2u);
  EXPECT_EQ(MedianIndex(std::vector<double>{4, 1, 2, 3}), 2u);
  EXPECT_EQ(MedianIndex(std::vector<double>{7}), 0u);
}

TEST(RelativeTrend, IsTheRiseOverTheMean) {
  EXPECT_DOUBLE_EQ(RelativeTrend(std::vector<double>{10, 10, 10}), 0);
  EXPECT_DOUBLE_EQ(RelativeTrend(std::vector<double>{9, 10, 11}), 0.2);
  EXPECT_DOUBLE_EQ(RelativeTrend(std::vector<double>{11, 10, 9}), -0.2);
}

TEST(RelativeTrend, DoesNotTakeNoiseForATrend) {
  EXPECT_NEAR(RelativeTrend(std::vector<double>{10, 12, 8, 12, 10}), 0, 0.01);
}

TEST(RelativeTrend, OfTooFewValuesIsNone) {
  EXPECT_EQ(RelativeTrend({}), 0);
  EXPECT_EQ(RelativeTrend(std::vector<double>{5}), 0);
  EXPECT_EQ(RelativeTrend(std::vector<double>{0, 0}), 0);
}

}  // namespace
}  // namespace forebay
