#include "forebay/train/options/lr_schedule.h"

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/train/options/lr_schedule_table.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LrScheduleOptions Options(LrSchedule schedule, int64_t warmup, int64_t num_steps) {
  return {.schedule = schedule, .lr = 2.0, .warmup = warmup, .num_steps = num_steps, .args = {}};
}

double LearningRate(const LrScheduleOptions& options, int64_t update) {
  return RatesOf(options, update).lr;
}

TEST(LearningRate, WarmUpRisesLinearlyToThePeak) {
  const LrScheduleOptions options = Options(LrSchedule::kLinear, 4, 10);
  EXPECT_DOUBLE_EQ(LearningRate(options, 1), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 2), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 2.0);
}

TEST(LearningRate, FirstStepAfterTheWarmUpHasThePeak) {
  for (const LrSchedule schedule : {LrSchedule::kConstant, LrSchedule::kLinear, LrSchedule::kCosine,
                                    LrSchedule::kPolynomial, LrSchedule::kInverseSqrt}) {
    EXPECT_DOUBLE_EQ(LearningRate(Options(schedule, 4, 10), 5), 2.0);
    EXPECT_DOUBLE_EQ(LearningRate(Options(schedule, 0, 10), 1), 2.0);
  }
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  EXPECT_DOUBLE_EQ(LearningRate(Options(LrSchedule::kConstant, 2, 10), 10), 2.0);
}

TEST(LearningRate, LinearFallsInALine) {
  const LrScheduleOptions options = Options(LrSchedule::kLinear, 2, 10);
  EXPECT_DOUBLE_EQ(LearningRate(options, 7), 2.0 * (1.0 - 4.0 / 8.0));
  EXPECT_DOUBLE_EQ(LearningRate(options, 10), 2.0 * (1.0 - 7.0 / 8.0));
}

TEST(LearningRate, CosineFallsAlongHalfACosine) {
  const LrScheduleOptions options = Options(LrSchedule::kCosine, 2, 10);
  EXPECT_NEAR(LearningRate(options, 7), 1.0, 1e-15);
  EXPECT_NEAR(LearningRate(options, 10), 2.0 * (1.0 + std::cos(M_PI * 7.0 / 8.0)) / 2.0, 1e-15);
}

TEST(LearningRate, PolynomialFallsToItsEndAsAPowerOfWhatIsLeft) {
  LrScheduleOptions options = Options(LrSchedule::kPolynomial, 2, 10);
  options.args = {{"power", 3.0}, {"end_lr", 0.5}};
  EXPECT_DOUBLE_EQ(LearningRate(options, 7), 0.5 + 1.5 * 0.125);
}

TEST(LearningRate, InverseSquareRootCountsFromTheEndOfTheWarmUp) {
  LrScheduleOptions options = Options(LrSchedule::kInverseSqrt, 4, 100);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4 + 1 + 3 * 4), 1.0);  // timescale: the warm-up
  options.args = {{"timescale", 8.0}};
  EXPECT_DOUBLE_EQ(LearningRate(options, 4 + 1 + 3 * 8), 1.0);
}

TEST(LearningRate, ARunThatIsAllWarmUpNeverLeavesIt) {
  const LrScheduleOptions options = Options(LrSchedule::kCosine, 10, 5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 5), 1.0);
}

// schedule_sequences.json holds what the schedulers of PyTorch, transformers and DeepSpeed gave
// (schedule_sequences.py).
TEST(LearningRate, IsThatOfTheSchedulersThatItIsNamedAfter) {
  const auto cases = ReadJsonFile(
      JoinPath(FOREBAY_SOURCE_DIR, "tests/train/sequences/schedule_sequences.json"), 1 << 20);
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_GE(cases->size(), 20u);
  for (const Json& item : *cases) {
    SCOPED_TRACE(item["schedule"].get<std::string>() + " " + item["args"].dump());
    TrainOptions train;
    train.lr = item["lr"].get<double>();
    train.schedule_args = item["args"];
    for (const LrScheduleSpec& spec : LrScheduleTable()) {
      if (item["schedule"] == spec.name) train.schedule = spec.schedule;
    }
    ASSERT_EQ(item["schedule"], SpecOf(train.schedule).name);
    const Json& rates = item["rates"];
    const auto schedule = MakeLrSchedule(train, static_cast<int64_t>(rates.size()));
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    for (size_t i = 0; i < rates.size(); ++i) {
      const ScheduledRates ours = RatesOf(*schedule, static_cast<int64_t>(i) + 1);
      // Some ulps of the largest rate: the peers go through other intermediate values.
      EXPECT_NEAR(ours.lr, rates[i][0].get<double>(), 1e-17) << "update " << i + 1;
      EXPECT_NEAR(ours.beta1.value_or(0.9), rates[i][1].get<double>(), 1e-14) << "update " << i + 1;
      EXPECT_NEAR(ours.beta2.value_or(0.999), rates[i][2].get<double>(), 1e-14);
    }
  }
}

// What the documentation says of them is what they have.
TEST(LearningRate, ADefaultThatIsGivenChangesNothing) {
  const std::map<std::string, double, std::less<>> words = {
      {"true", 1}, {"false", 0}, {"log", 0}, {"cos", 0}};
  int num_defaults = 0;
  for (const LrScheduleSpec& spec : LrScheduleTable()) {
    LrScheduleOptions plain = Options(spec.schedule, 0, 6000);
    if (spec.schedule == LrSchedule::kDeepSpeedOneCycle) {
      plain.args = {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 1.0}};
    }
    for (const LrScheduleArgSpec& arg : spec.args) {
      const auto word = words.find(arg.default_text);
      double value = word != words.end() ? word->second : 0.0;
      // Others are required, or in terms of something else.
      if (word == words.end() && !absl::SimpleAtod(std::string(arg.default_text), &value)) continue;
      ++num_defaults;
      LrScheduleOptions given = plain;
      given.args.emplace(arg.name, value);
      for (int64_t update = 1; update <= plain.num_steps; update += 7) {
        const ScheduledRates ours = RatesOf(given, update);
        const ScheduledRates theirs = RatesOf(plain, update);
        ASSERT_EQ(ours.lr, theirs.lr) << spec.name << " " << arg.name << " " << update;
        ASSERT_EQ(ours.beta1, theirs.beta1) << spec.name << " " << arg.name << " " << update;
      }
    }
  }
  EXPECT_GT(num_defaults, 25);
}

std::string ErrorOf(LrSchedule schedule, const Json& args) {
  const auto parsed = ParseLrScheduleArgs(schedule, args);
  EXPECT_EQ(ExitCodeOf(parsed.status()), ExitCode::kUsage);
  return MessageOf(parsed.status());
}

TEST(LrScheduleArgs, ThatAScheduleDoesNotHaveAreErrorsWithTheNearestName) {
  EXPECT_THAT(ErrorOf(LrSchedule::kPolynomial, {{"powr", 2}}),
              AllOf(HasSubstr("'powr'"), HasSubstr("did you mean 'power'?")));
  EXPECT_THAT(ErrorOf(LrSchedule::kLinear, {{"power", 2}}), HasSubstr("has no arguments"));
}

TEST(LrScheduleArgs, OutOfRangeOrOfAnotherTypeNameWhatMayBeGiven) {
  EXPECT_THAT(ErrorOf(LrSchedule::kPolynomial, {{"power", 0}}),
              AllOf(HasSubstr("power=0"), HasSubstr("a number above 0")));
  EXPECT_THAT(ErrorOf(LrSchedule::kWarmupLr, {{"warmup_num_steps", 1.5}}),
              HasSubstr("a whole number"));
  EXPECT_THAT(ErrorOf(LrSchedule::kWarmupLr, {{"warmup_num_steps", 0}}), HasSubstr("1 or more"));
  EXPECT_THAT(ErrorOf(LrSchedule::kWarmupLr, {{"warmup_type", "square"}}),
              HasSubstr("log or linear"));
  EXPECT_THAT(ErrorOf(LrSchedule::kOneCycle, {{"cycle_momentum", 1}}), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf(LrSchedule::kOneCycle, {{"max_momentum", 1}}), HasSubstr("to below 1"));
  EXPECT_THAT(ErrorOf(LrSchedule::kDeepSpeedOneCycle, {{"cycle_min_lr", 0.1}}),
              HasSubstr("needs 'cycle_max_lr'"));
}

TEST(LrScheduleArgs, ThatMakeAnUnusableBetaAreErrors) {
  TrainOptions train;
  train.schedule = LrSchedule::kDeepSpeedOneCycle;
  train.schedule_args = {{"cycle_min_lr", 1e-4},
                         {"cycle_max_lr", 1e-3},
                         {"cycle_first_step_size", 5},
                         {"decay_step_size", 1},
                         {"decay_mom_rate", 0.1}};
  EXPECT_TRUE(MakeLrSchedule(train, 10).ok());
  const auto too_long = MakeLrSchedule(train, 100);
  EXPECT_EQ(ExitCodeOf(too_long.status()), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(too_long.status()), AllOf(HasSubstr("beta1"), HasSubstr("decay_mom_rate")));
}

}  // namespace
}  // namespace forebay
