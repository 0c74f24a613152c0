#include "forebay/offload/kept_update.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(KeptUpdate, GivesItsNumbersBackBitForBit) {
  const Json metrics = {{"step", 7}, {"loss", 0.1}};
  const double least = std::numeric_limits<double>::denorm_min();
  for (const double number : {0.1, 1.0 / 3, 1e-300, least, 0.0, -0.0, 123456789.123456789}) {
    const UpdateScalars scalars = {.step = 5,  // two steps were skipped
                                   .lr = number,
                                   .gradient_scale = number / 3,
                                   .beta1 = number / 7,
                                   .eps = number / 13,
                                   .rounding_seed = std::numeric_limits<uint64_t>::max()};
    const std::vector<ParameterGroup> groups = {
        {.lr_scale = number, .weight_decay = number / 5},
        {.beta1 = number, .beta2 = number / 9, .eps = number / 11, .frozen = true}};
    // As the store keeps it.
    const StepIntent intent = {7, 2, Json::parse(EncodeUpdate({scalars, groups, metrics}).dump())};
    const auto update = DecodeUpdate(intent, 7);
    ASSERT_TRUE(update.ok()) << update.status();
    EXPECT_EQ(update->scalars.step, 5);
    EXPECT_EQ(update->scalars.rounding_seed, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(std::bit_cast<uint64_t>(update->scalars.lr), std::bit_cast<uint64_t>(number));
    EXPECT_EQ(std::bit_cast<uint64_t>(update->scalars.gradient_scale),
              std::bit_cast<uint64_t>(number / 3));
    EXPECT_EQ(update->scalars.beta1, number / 7);
    EXPECT_EQ(update->scalars.beta2, std::nullopt);
    EXPECT_EQ(update->scalars.eps, number / 13);
    EXPECT_EQ(update->kept, metrics);
    ASSERT_EQ(update->groups.size(), 2u);
    EXPECT_EQ(std::bit_cast<uint64_t>(update->groups[0].lr_scale), std::bit_cast<uint64_t>(number));
    EXPECT_EQ(update->groups[0].weight_decay, number / 5);
    EXPECT_EQ(update->groups[0].eps, std::nullopt);
    EXPECT_FALSE(update->groups[0].frozen);
    EXPECT_EQ(update->groups[1].beta1, number);
    EXPECT_EQ(update->groups[1].beta2, number / 9);
    EXPECT_EQ(update->groups[1].eps, number / 11);
    EXPECT_TRUE(update->groups[1].frozen);
  }
}

TEST(KeptUpdate, OfAnotherStepOrProgramIsRefused) {
  const Json whole =
      EncodeUpdate({{.step = 7, .lr = 0.1, .beta1 = 0.8}, {{.lr_scale = 2}}, Json::object()});
  std::vector<StepIntent> intents = {{6, 2, whole}, {7, 2, Json()}, {7, 2, Json::array()}};
  for (const char* key : {"lr", "gradient_scale", "metrics", "update", "rounding_seed"}) {
    Json part = whole;
    part.erase(key);
    intents.push_back({7, 2, part});
  }
  for (const char* key : {"lr", "gradient_scale", "beta1", "update", "rounding_seed"}) {
    Json text = whole;
    text[key] = "0.1";
    intents.push_back({7, 2, text});
  }
  for (const char* key : {"lr_scale", "weight_decay", "eps", "frozen"}) {
    Json text = whole;
    text["groups"][0][key] = "0.1";
    intents.push_back({7, 2, text});
  }
  for (const StepIntent& intent : intents) {
    const auto update = DecodeUpdate(intent, 7);
    EXPECT_EQ(ExitCodeOf(update.status()), ExitCode::kCorrupt) << intent.trainer;
    EXPECT_THAT(MessageOf(update.status()),
                AllOf(HasSubstr("intent.fbs"), HasSubstr("step 7 was expected")));
  }
}

}  // namespace
}  // namespace forebay
