#include "forebay/train/report/thin_points.h"

#include <algorithm>
#include <limits>

#include "forebay/train/report/metrics_table.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST(ThinnedRows, KeepsAllOfAShortLine) {
  EXPECT_THAT(ThinnedRows({}, 6), ElementsAre());
  EXPECT_THAT(ThinnedRows({1, kMissing, 3}, 6), ElementsAre(0, 1, 2));
  EXPECT_EQ(ThinnedRows(std::vector<double>(500, 1), 500).size(), 500u);
}

TEST(ThinnedRows, KeepsTheEndsAndSinglePeaksOfALongLine) {
  std::vector<double> values(100'003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 7);
  values[51'234] = 1000;
  values[51'235] = -1000;
  const std::vector<size_t> rows = ThinnedRows(values, 500);
  EXPECT_LE(rows.size(), 500u);
  EXPECT_GE(rows.size(), 400u);
  EXPECT_TRUE(std::ranges::is_sorted(rows));
  EXPECT_THAT(rows, Contains(0u));
  EXPECT_THAT(rows, Contains(100'002u));
  EXPECT_THAT(rows, Contains(51'234u));
  EXPECT_THAT(rows, Contains(51'235u));
}

TEST(ThinnedRows, KeepsGaps) {
  std::vector<double> values(10'000, 1.0);
  values[3'333] = kMissing;
  values[6'000] = std::numeric_limits<double>::infinity();
  const std::vector<size_t> rows = ThinnedRows(values, 500);
  EXPECT_LE(rows.size(), 500u);
  EXPECT_THAT(rows, Contains(3'333u));
  EXPECT_THAT(rows, Contains(6'000u));
}

TEST(ThinnedRows, OfAlternatingGapsStaysWithinItsMost) {
  std::vector<double> values(99'999);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i % 2 == 0 ? static_cast<double>(i) : kMissing;
  EXPECT_LE(ThinnedRows(values, 500).size(), 500u);
}

}  // namespace
}  // namespace forebay
