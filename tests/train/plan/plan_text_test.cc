// The text of plans.
#include <string>

#include "forebay/base/format.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PlanText, TheTableShowsEveryTotal) {
  const auto plan = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  ASSERT_TRUE(plan.ok());
  const std::string table = FormatPlan(*plan, SmolLm2(), SmallRun());
  EXPECT_THAT(table, HasSubstr("LlamaForCausalLM   135 M params   30 layers"));
  EXPECT_THAT(table, HasSubstr("1024 tokens/step (4 x 256 x 1)"));
  EXPECT_THAT(table, HasSubstr("RAM 1.00 GiB"));
  EXPECT_THAT(table, HasSubstr("verdict    fits"));
  for (const PlanTerm& term : plan->terms) {
    if (term.host_bytes + term.nvme_bytes == 0) continue;
    EXPECT_THAT(table, HasSubstr(term.name));
  }
}

TEST(PlanText, MemoryAndSpaceAreInTheUnitsOfTheBudget) {
  MachineLimits limits = BigMachine();
  limits.disks.push_back({.folder = "/disk1", .free_bytes = limits.disks[0].free_bytes});
  const auto plan = MakePlan(SmolLm2(), SmallRun(), limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string table = FormatPlan(*plan, SmolLm2(), SmallRun());
  const std::string held = table.substr(0, table.find("per step"));
  for (const char* unit : {" KB", " MB", " GB", " TB"}) EXPECT_THAT(held, Not(HasSubstr(unit)));
  EXPECT_THAT(held, HasSubstr(FormatBinaryBytes(plan->host_bytes)));
  EXPECT_THAT(held, HasSubstr(FormatBinaryBytes(plan->nvme_bytes)));
  EXPECT_THAT(held,
              HasSubstr(FormatBinaryBytes(plan->stripes.front().nvme_bytes) + " in out/swap"));
  const int64_t spare_bytes = plan->ram_budget_bytes - plan->host_bytes;
  EXPECT_THAT(table, HasSubstr("RAM spare " + FormatBinaryBytes(spare_bytes)));
}

TEST(PlanText, TheJsonFormHasTheSameTotals) {
  const auto plan = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  ASSERT_TRUE(plan.ok());
  const Json json = ToJson(*plan);
  EXPECT_EQ(json["host_bytes"], plan->host_bytes);
  EXPECT_EQ(json["nvme_bytes"], plan->nvme_bytes);
  EXPECT_EQ(json["terms"].size(), plan->terms.size());
  EXPECT_EQ(json["placement"]["num_layers"], 32);
}

}  // namespace
}  // namespace forebay
