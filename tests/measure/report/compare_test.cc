#include "forebay/measure/report/compare.h"

#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

ReportCell Cell(const std::string& device, LoadOp op, const Spread& gbps) {
  return {{device, {op, op == LoadOp::kRead ? 100 : 0}, 1 << 20, 32 << 20, "io_uring"}, gbps};
}

TEST(CompareReports, MatchesCellsByTheirKeys) {
  const std::vector<ReportCell> before = {Cell("/a", LoadOp::kRead, {2, 1.8, 2.2}),
                                          Cell("/a", LoadOp::kWrite, {1, 1, 1}),
                                          Cell("/gone", LoadOp::kRead, {1, 1, 1})};
  const std::vector<ReportCell> after = {Cell("/new", LoadOp::kRead, {1, 1, 1}),
                                         Cell("/a", LoadOp::kWrite, {0.5, 0.4, 0.6}),
                                         Cell("/a", LoadOp::kRead, {2.2, 2.1, 2.4})};
  const ReportComparison comparison = CompareReports(before, after);
  ASSERT_EQ(comparison.cells.size(), 2u);
  EXPECT_DOUBLE_EQ(*comparison.cells[0].ratio, 1.1);
  EXPECT_DOUBLE_EQ(*comparison.cells[0].least_ratio, 2.1 / 2.2);
  EXPECT_DOUBLE_EQ(*comparison.cells[0].most_ratio, 2.4 / 1.8);
  EXPECT_DOUBLE_EQ(*comparison.cells[1].ratio, 0.5);
  ASSERT_EQ(comparison.only_before.size(), 1u);
  EXPECT_EQ(comparison.only_before[0].device, "/gone");
  ASSERT_EQ(comparison.only_after.size(), 1u);
  EXPECT_EQ(comparison.only_after[0].device, "/new");
}

TEST(CompareReports, AnotherSettingIsAnotherCell) {
  const std::vector<ReportCell> before = {Cell("/a", LoadOp::kRead, {2, 2, 2})};
  for (int change = 0; change < 5; ++change) {
    std::vector<ReportCell> after = before;
    CellKey& key = after[0].key;
    if (change == 0) key.block_bytes *= 2;
    if (change == 1) key.inflight_bytes *= 2;
    if (change == 2) key.engine = "libaio";
    if (change == 3) key.load = {LoadOp::kMixed, 50};
    if (change == 4) key.burst_bytes = 8 << 20;
    EXPECT_TRUE(CompareReports(before, after).cells.empty()) << change;
  }
}

TEST(CompareReports, OfCellsThatAppearTwiceTheFirstCounts) {
  const std::vector<ReportCell> twice = {Cell("/a", LoadOp::kRead, {2, 2, 2}),
                                         Cell("/a", LoadOp::kRead, {9, 9, 9})};
  const ReportComparison comparison = CompareReports(twice, twice);
  ASSERT_EQ(comparison.cells.size(), 1u);
  EXPECT_DOUBLE_EQ(comparison.cells[0].before.median, 2);
  EXPECT_DOUBLE_EQ(*comparison.cells[0].ratio, 1);
}

TEST(CompareReports, WhereThereWasNoBandwidthThereIsNoRatio) {
  const std::vector<ReportCell> none = {Cell("/a", LoadOp::kRead, {0, 0, 1})};
  const std::vector<ReportCell> some = {Cell("/a", LoadOp::kRead, {1.26, 1.2, 1.3})};
  const CellComparison cell = CompareReports(none, some).cells[0];
  EXPECT_FALSE(cell.ratio.has_value());
  EXPECT_DOUBLE_EQ(*cell.least_ratio, 1.2);
  EXPECT_FALSE(cell.most_ratio.has_value());
  EXPECT_DOUBLE_EQ(*CompareReports(some, none).cells[0].ratio, 0);
}

}  // namespace
}  // namespace forebay
