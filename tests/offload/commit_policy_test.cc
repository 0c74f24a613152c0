#include "forebay/offload/commit_policy.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr double kDiskBytesPerS = 1e9;

// `seconds` after a commit, in steps of 10 s.
SinceCommit After(double seconds, double step_s = 10) {
  return {.steps = static_cast<int64_t>(seconds / step_s),
          .seconds = seconds,
          .step_s = step_s,
          .write_bytes_per_s = kDiskBytesPerS};
}

TEST(CommitIsDue, AfterEveryStepWhereAllStateIsOnDisk) {
  EXPECT_TRUE(CommitIsDue({.resident_bytes = 0}, After(0)));
}

TEST(CommitIsDue, AfterSoManySteps) {
  const CommitPace pace = {.every_steps = 3, .resident_bytes = 1'000'000'000'000};
  EXPECT_FALSE(CommitIsDue(pace, {.steps = 2, .seconds = 1e6}));
  EXPECT_TRUE(CommitIsDue(pace, {.steps = 3}));
  EXPECT_TRUE(CommitIsDue(pace, {.steps = 4}));
}

TEST(CommitIsDue, NeverUnaskedOfOneCopy) {
  EXPECT_FALSE(CommitIsDue({.only_on_demand = true}, After(1e6)));
}

TEST(CommitIsDue, WhenWhatIsInMemoryTakesNoMoreThanItsShareOfTheTime) {
  const CommitPace pace = {.resident_bytes = 10'000'000'000};  // 10 s, of 200
  EXPECT_FALSE(CommitIsDue(pace, After(190)));
  EXPECT_TRUE(CommitIsDue(pace, After(200)));
}

TEST(CommitIsDue, BeforeTheNextStepWouldLoseTooMuch) {
  const CommitPace pace = {.resident_bytes = 100'000'000'000};  // 100 s, of 2000
  EXPECT_FALSE(CommitIsDue(pace, After(300)));
  EXPECT_FALSE(CommitIsDue(pace, After(480)));
  EXPECT_TRUE(CommitIsDue(pace, After(490))) << "two steps and the commit itself are to come";
  EXPECT_TRUE(CommitIsDue(pace, After(300, /*step_s=*/110)));
}

TEST(CommitIsDue, WhenTheSpeedOfTheDiskIsNotKnownYet) {
  EXPECT_TRUE(CommitIsDue({.resident_bytes = 1'000'000'000}, {.steps = 1}));
}

}  // namespace
}  // namespace forebay
