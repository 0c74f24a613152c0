#include "forebay/train/run/run_report.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

StepCost CostOf(int64_t read_bytes, int64_t write_bytes) {
  StepCost cost;
  cost.before.io.submitted_read_bytes = 1000;
  cost.before.io.write_bytes = 2000;
  cost.after.io.submitted_read_bytes = 1000 + read_bytes;
  cost.after.io.write_bytes = 2000 + write_bytes;
  return cost;
}

TEST(SessionTotals, TheBytesOfAStepAreThoseOfTheOneInTheMiddle) {
  SessionTotals totals;
  EXPECT_EQ(totals.median_read_bytes(), 0);
  totals.Add(CostOf(60, 0));  // the first one
  EXPECT_EQ(totals.median_read_bytes(), 60);
  totals.Add(CostOf(377, 342));
  EXPECT_EQ(totals.median_read_bytes(), 60);
  totals.Add(CostOf(377, 342));
  totals.Add(CostOf(500, 684));  // with the commit of the last one
  EXPECT_EQ(totals.median_read_bytes(), 377);
  EXPECT_EQ(totals.median_write_bytes(), 342);
}

}  // namespace
}  // namespace forebay
