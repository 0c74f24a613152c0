#include "forebay/train/lr_schedule.h"

#include <cmath>

#include "gtest/gtest.h"

namespace forebay {
namespace {

LrScheduleOptions Options(LrSchedule schedule, int64_t warmup, int64_t num_steps) {
  return {.schedule = schedule, .lr = 2.0, .warmup = warmup, .num_steps = num_steps};
}

TEST(LearningRate, WarmUpRisesLinearlyToThePeak) {
  const LrScheduleOptions options = Options(LrSchedule::kLinear, 4, 10);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 2), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 2.0);
}

TEST(LearningRate, FirstStepAfterTheWarmUpHasThePeak) {
  for (const LrSchedule schedule :
       {LrSchedule::kConstant, LrSchedule::kLinear, LrSchedule::kCosine}) {
    EXPECT_DOUBLE_EQ(LearningRate(Options(schedule, 4, 10), 5), 2.0);
    EXPECT_DOUBLE_EQ(LearningRate(Options(schedule, 0, 10), 1), 2.0);
  }
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  EXPECT_DOUBLE_EQ(LearningRate(Options(LrSchedule::kConstant, 2, 10), 10), 2.0);
}

TEST(LearningRate, LinearFallsByEqualSteps) {
  const LrScheduleOptions options = Options(LrSchedule::kLinear, 2, 10);
  EXPECT_DOUBLE_EQ(LearningRate(options, 7), 2.0 * (1.0 - 4.0 / 8.0));
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 2.0 * (1.0 - 7.0 / 8.0));
}

TEST(LearningRate, CosineIsHalfAtTheMiddle) {
  const LrScheduleOptions options = Options(LrSchedule::kCosine, 2, 10);
  EXPECT_NEAR(LearningRate(options, 7), 1.0, 1e-15);
  EXPECT_NEAR(LearningRate(options, 10), 2.0 * (1.0 + std::cos(M_PI * 7.0 / 8.0)) / 2.0, 1e-15);
}

TEST(LearningRate, RunShorterThanItsWarmUpIsAllWarmUp) {
  const LrScheduleOptions options = Options(LrSchedule::kCosine, 10, 5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 1.0);
}

}  // namespace
}  // namespace forebay
