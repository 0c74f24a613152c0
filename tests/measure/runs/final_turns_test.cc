#include "forebay/measure/runs/final_turns.h"

#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// What is spent by turns whose passes take `beside_s` longer than they are given.
TurnsSoFar Spend(double budget_s, size_t num_passes, double beside_s,
                 std::vector<double>* pass_seconds = nullptr) {
  TurnsSoFar so_far;
  for (;;) {
    const double pass_s = NextTurnPassS(so_far, budget_s, num_passes);
    if (pass_s == 0) return so_far;
    if (pass_seconds != nullptr) pass_seconds->push_back(pass_s);
    ++so_far.num_turns;
    so_far.planned_s += pass_s * static_cast<double>(num_passes);
    so_far.elapsed_s += (pass_s + beside_s) * static_cast<double>(num_passes);
  }
}

TEST(NextTurnPassS, SharesTheBudgetAmongThreeTurns) {
  std::vector<double> pass_seconds;
  const TurnsSoFar all = Spend(12, 4, 0, &pass_seconds);
  EXPECT_EQ(all.num_turns, kFinalTurns);
  EXPECT_DOUBLE_EQ(all.elapsed_s, 12);
  for (const double pass_s : pass_seconds) EXPECT_DOUBLE_EQ(pass_s, 1);
}

TEST(NextTurnPassS, ShortensLaterTurnsForWhatPassesTakeBeside) {
  const TurnsSoFar slow = Spend(12, 4, 0.3);
  EXPECT_EQ(slow.num_turns, kFinalTurns);
  EXPECT_LE(slow.elapsed_s, 12.01);
}

TEST(NextTurnPassS, DoesWhatFitsOfATooShortBudget) {
  EXPECT_EQ(Spend(0.5, 4, 0).num_turns, 2);
  EXPECT_EQ(Spend(0.25, 4, 0).num_turns, 1);
  EXPECT_EQ(Spend(0.19, 4, 0).num_turns, 0);
  EXPECT_EQ(Spend(-1, 4, 0).num_turns, 0);
  // A disk that needs long to flush.
  const TurnsSoFar slow = Spend(3, 4, 0.4);
  EXPECT_EQ(slow.num_turns, 1);
  EXPECT_LE(slow.elapsed_s, 3);
}

TEST(NextTurnPassS, NoPassIsLongerThanIsOfUse) {
  EXPECT_DOUBLE_EQ(NextTurnPassS({}, 1e6, 4), kLongestPassS);
  EXPECT_EQ(Spend(1e6, 4, 0).num_turns, kFinalTurns);
}

TEST(FewTurnsNote, SaysWhatTheFiguresAreWorth) {
  EXPECT_EQ(FewTurnsNote("/nvme", kFinalTurns), "");
  EXPECT_THAT(FewTurnsNote("/nvme", 1), HasSubstr("only 1 of 3 times in '/nvme'"));
  EXPECT_THAT(FewTurnsNote("/nvme", 0), HasSubstr("single passes in '/nvme'"));
}

}  // namespace
}  // namespace forebay
