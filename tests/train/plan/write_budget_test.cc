#include "forebay/train/plan/write_budget.h"

#include "forebay/tests/train/plan/planned_models.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Plan PlanOf(const TrainOptions& options) {
  MachineLimits limits;
  limits.available_memory_bytes = 64 * kGibibyte;
  limits.num_cores = 2;
  limits.disks[0].free_bytes = limits.out_free_bytes = 4000 * kGibibyte;
  const auto plan = MakePlan(Llama13B(), options, limits);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TrainOptions Options() {
  TrainOptions options;
  options.out = "out";
  options.batch = 1;
  options.seq = 256;
  options.ram_bytes = 32 * kGibibyte;
  return options;
}

// With a commit, as these go by time.
int64_t BytesOfAStep(const Plan& plan) {
  EXPECT_EQ(StepsPerCommit(plan.commit_pace), 0);
  return plan.write_bytes_per_step + plan.commit_bytes;
}

TEST(WriteBudget, APlanSaysAfterHowManyStepsTheLimitStopsARun) {
  TrainOptions options = Options();
  const Plan plan = PlanOf(options);
  EXPECT_TRUE(ToJson(plan)["steps_within_max_tbw"].is_null());
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options), Not(HasSubstr("--max_tbw")));
  // What makes the store, nine steps, and the last one with what saves it.
  const int64_t bytes = StoreFillBytes(plan) + 9 * BytesOfAStep(plan) + 2 * MostBytesOfAStep(plan);
  options.max_tbw = static_cast<double>(bytes + 10'000) * 1e-12;
  const Plan limited = PlanOf(options);
  EXPECT_EQ(ToJson(limited)["steps_within_max_tbw"], 10);
  EXPECT_THAT(FormatPlan(limited, Llama13B(), options),
              HasSubstr("stops a new run after 10 steps at the earliest"));
  options.max_tbw = static_cast<double>(StoreFillBytes(plan)) * 1e-12;
  EXPECT_EQ(PlanOf(options).steps_within_limit, 0);
}

TEST(WriteBudget, OfARunThatGoesOnWhatItHasWrittenCountsAndNoNewSwapArea) {
  TrainOptions options = Options();
  Plan plan = PlanOf(options);
  plan.written_before_bytes = 5 * BytesOfAStep(plan);
  const int64_t bytes = 9 * BytesOfAStep(plan) + 2 * MostBytesOfAStep(plan);
  options.max_tbw = static_cast<double>(bytes + 10'000) * 1e-12;
  plan.steps_within_limit = StepsWithinLimit(plan, options);
  EXPECT_EQ(plan.steps_within_limit, 5);
  EXPECT_THAT(FormatPlan(plan, Llama13B(), options),
              AllOf(HasSubstr("stops the run after 5 more steps at the earliest"),
                    HasSubstr("have written"), Not(HasSubstr("new run"))));
}

TEST(WriteBudget, CommitsThatGoByStepsCountWithThoseThatEvaluationsNeed) {
  TrainOptions options = Options();
  options.commit_every = 4;
  const Plan plan = PlanOf(options);
  const int64_t fixed = StoreFillBytes(plan) + 2 * MostBytesOfAStep(plan);
  const int64_t bytes = fixed + 18 * plan.write_bytes_per_step + plan.commit_bytes / 2;
  options.max_tbw = static_cast<double>(bytes) * 1e-12;
  EXPECT_EQ(StepsWithinLimit(plan, options), 19);
  options.eval_every = 2;
  EXPECT_EQ(StepsWithinLimit(plan, options),
            (bytes - fixed) / (plan.write_bytes_per_step + plan.commit_bytes / 2 + 1) + 1);
}

TEST(WriteBudget, AStepThatMayBeComputedTwiceMayWriteTwice) {
  TrainOptions options = Options();
  const int64_t held = PlanOf(options).write_bytes_per_step;
  EXPECT_GE(MostBytesOfAStep(PlanOf(options)), held);
  options.gradients = GradientChoice::kSpeculate;
  options.ram_bytes = 24 * kGibibyte;
  const Plan speculative = PlanOf(options);
  ASSERT_GT(speculative.placement.NumUpdated(UpdateTime::kAfterHand), 0);
  EXPECT_GE(MostBytesOfAStep(speculative), 2 * speculative.write_bytes_per_step);
}

}  // namespace
}  // namespace forebay
