#include "forebay/memory/memory_budget.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST(MemoryBudget, CountsByPurposeAndRemembersThePeak) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.Charge("window", 400).ok());
  ASSERT_TRUE(budget.Charge("gradients", 300).ok());
  ASSERT_TRUE(budget.Charge("window", 200).ok());
  budget.Release("window", 400);
  EXPECT_EQ(budget.used_bytes(), 500);
  EXPECT_EQ(budget.peak_bytes(), 900);
  EXPECT_THAT(budget.by_purpose(), ElementsAre(Pair("gradients", 300), Pair("window", 200)));
}

TEST(MemoryBudget, ForgetsAPurposeThatWasGivenBackWhole) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.Charge("window", 400).ok());
  budget.Release("window", 400);
  EXPECT_THAT(budget.by_purpose(), IsEmpty());
}

TEST(MemoryBudget, LetsItselfBeFilledToTheLastByte) {
  MemoryBudget budget(1000);
  EXPECT_TRUE(budget.Charge("window", 1000).ok());
  EXPECT_FALSE(budget.Charge("window", 1).ok());
}

TEST(MemoryBudget, RefusesMoreThanTheLimitAndSaysWhoHoldsIt) {
  MemoryBudget budget(int64_t{10} << 20);
  ASSERT_TRUE(budget.Charge("window", int64_t{6} << 20).ok());
  ASSERT_TRUE(budget.Charge("gradients", int64_t{2} << 20).ok());
  const absl::Status status = budget.Charge("staging", int64_t{3} << 20);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(status), HasSubstr("'staging' asks for 3.00 MiB (3145728 bytes)"));
  EXPECT_THAT(MessageOf(status), HasSubstr("10.0 MiB"));
  EXPECT_THAT(MessageOf(status), HasSubstr("largest: 'window' 6.00 MiB, 'gradients' 2.00 MiB"));
  EXPECT_EQ(budget.used_bytes(), int64_t{8} << 20) << "a refused charge must not count";
}

TEST(MemoryBudget, ALimitOfZeroOnlyCounts) {
  MemoryBudget budget(0);
  EXPECT_TRUE(budget.Charge("window", int64_t{1} << 60).ok());
  EXPECT_EQ(budget.used_bytes(), int64_t{1} << 60);
}

TEST(MemoryBudgetDeathTest, GivingBackMoreThanWasChargedIsABug) {
  MemoryBudget budget(1000);
  ASSERT_TRUE(budget.Charge("window", 10).ok());
  EXPECT_DEATH(budget.Release("window", 11), "internal error");
  EXPECT_DEATH(budget.Release("gradients", 1), "internal error");
}

}  // namespace
}  // namespace forebay
