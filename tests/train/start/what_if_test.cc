#include "forebay/train/start/what_if.h"

#include <algorithm>

#include "forebay/base/errors.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WhatIfTest : public testing::Test {
 protected:
  // 13 G parameters on a PC with a GPU.
  static absl::StatusOr<Plan> PlanOnPc(const TrainOptions& given) {
    TrainOptions options = given;
    const MachineLimits limits = LimitsOf(*ReadMachine("4090-64g"), options);
    return MakePlan(Llama13B(), options, limits);
  }
  absl::StatusOr<std::vector<Alternative>> Rows(const std::vector<std::string>& alternatives) {
    return PlanAlternatives(inputs_, alternatives, PlanOnPc);
  }
  const Alternative& RowOf(const std::vector<Alternative>& rows, const std::string& settings) {
    return *std::ranges::find(rows, settings, &Alternative::settings);
  }

  OptionInputs inputs_ = {.flags = {{"model", "m"}, {"device", "cuda"}, {"accum", "16"}}};
};

TEST_F(WhatIfTest, AlternativesEndAtCommasThatASettingFollows) {
  EXPECT_THAT(
      *SplitAlternatives({"ram=2GiB,layout=int8-moments+batch=8", "betas=0.9,0.99+lr=1e+1"}),
      ElementsAre("ram=2GiB", "layout=int8-moments+batch=8", "betas=0.9,0.99+lr=1e+1"));
  for (const char* bad : {"", "ram", "=2GiB", "2GiB", "ram,batch=2"}) {
    const absl::Status status = SplitAlternatives({bad}).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << bad;
    EXPECT_THAT(MessageOf(status), HasSubstr("is no NAME=VALUE"));
  }
}

TEST_F(WhatIfTest, EachRowIsThePlanOfARunWithTheseSettings) {
  const auto rows = Rows({"accum=32", "offload.layout=int8-moments+ram=40GiB"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3);
  TrainOptions options = ResolveOptions(inputs_, OptionsUse::kPlan)->options;
  EXPECT_EQ(ToJson(*(*rows)[0].plan), ToJson(*PlanOnPc(options)));
  options.accum = 32;
  EXPECT_EQ(ToJson(*(*rows)[1].plan), ToJson(*PlanOnPc(options)));
  options.accum = 16;
  options.layout = Layout::kInt8Moments;
  options.ram_bytes = int64_t{40} << 30;
  EXPECT_EQ(ToJson(*(*rows)[2].plan), ToJson(*PlanOnPc(options)));
}

TEST_F(WhatIfTest, WhatFollowsFromASettingFollowsInItsRow) {
  const auto rows = Rows({"precision=fp32"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[1].plan->tiles.layout(), Layout::kFp32);
}

TEST_F(WhatIfTest, WhatDoesNotFitIsARowThatSaysWhatIsLargest) {
  const auto rows = Rows({"ram=1GiB", "gpu-mem=4GiB"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  const Json json = ToJson(*rows);
  EXPECT_EQ(json[0]["fits"], true);
  EXPECT_EQ(json[1]["fits"], false);
  EXPECT_THAT(json[1]["why_not"].get<std::string>(), HasSubstr("--ram=1.00 GiB"));
  EXPECT_THAT(json[1]["largest_term"].get<std::string>(), HasSubstr(" GiB"));
  EXPECT_THAT(json[2]["why_not"].get<std::string>(), HasSubstr("its budget is 4.00 GiB"));
  EXPECT_THAT(json[2]["largest_term"].get<std::string>(), HasSubstr("B"));
  const std::string table = FormatAlternatives(*rows);
  EXPECT_THAT(table, HasSubstr("as given"));
  EXPECT_THAT(table, HasSubstr("ram=1GiB      does not fit: this run needs at least"));
  EXPECT_THAT(table, HasSubstr("; most of it: " + json[1]["largest_term"].get<std::string>()));
  EXPECT_EQ(std::ranges::count(table, '\n'), 4);
}

TEST_F(WhatIfTest, TheRunAsGivenMayBeTheOneThatDoesNotFit) {
  inputs_.flags.emplace_back("ram", "1GiB");
  const auto rows = Rows({"ram=40GiB"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(ExitCodeOf((*rows)[0].plan.status()), ExitCode::kDoesNotFit);
  EXPECT_TRUE((*rows)[1].plan.ok());
  const auto usual = PlanUsualAlternatives(inputs_, PlanOnPc);
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_EQ(RowOf(*usual, "ram=2048MiB").settings, "ram=2048MiB");
}

TEST_F(WhatIfTest, AWrongAlternativeIsNamed) {
  for (const char* bad : {"rum=1GiB", "ram=much", "precision=fp32+layout=int8-moments"}) {
    const absl::Status status = Rows({"accum=2", bad}).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << bad;
    EXPECT_THAT(MessageOf(status), HasSubstr(std::string("--what_if=") + bad + ": "));
  }
}

TEST_F(WhatIfTest, TheUsualOnesChangeOneThingEach) {
  const auto rows = PlanUsualAlternatives(inputs_, PlanOnPc);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const Plan& as_given = *rows->front().plan;
  EXPECT_EQ(RowOf(*rows, "accum=32").plan->tokens_per_step, 2 * as_given.tokens_per_step);
  EXPECT_EQ(RowOf(*rows, "batch=8").plan->tokens_per_step, 2 * as_given.tokens_per_step);
  EXPECT_LT(RowOf(*rows, "layout=int8-moments").plan->write_bytes_per_step,
            as_given.write_bytes_per_step);
  EXPECT_LT(RowOf(*rows, "durability=none").plan->nvme_bytes, as_given.nvme_bytes);
  EXPECT_GT(as_given.gpu.num_spilled_activations, 0);
  EXPECT_EQ(as_given.activations.num_spilled, 0);
  EXPECT_EQ(RowOf(*rows, "activations_tier=nvme").plan->activations.num_spilled,
            as_given.gpu.num_spilled_activations);
  const Json json = ToJson(*rows);
  EXPECT_EQ(json[0]["settings"], "");
  EXPECT_EQ(json[0]["step_s"], as_given.forecast->step_s);
  EXPECT_DOUBLE_EQ(json[0]["tb_written_per_1000_steps"],
                   static_cast<double>(as_given.write_bytes_per_step) * 1e-9);
}

}  // namespace
}  // namespace forebay
