#include "forebay/optimizer/intent_words.h"

#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(IntentWords, AreTheTrainersAloneWhereNoTensorIsLeftAlone) {
  const Json trainer = {{"update", 3}, {"lr", 0.5}};
  EXPECT_EQ(EncodeIntentWords(trainer, std::vector<uint8_t>(9)).dump(), trainer.dump());
}

TEST(IntentWords, GiveBackWhatTheyWereMadeOf) {
  const CounterRng rng(/*seed=*/3);
  // The last looks as if it were made here.
  const std::vector<const char*> trainers = {"{}", R"({"lr":0.5})", "null", "[1]",
                                             R"({"left_alone":"f","trainer":1})"};
  for (const char* const text : trainers) {
    const Json trainer = Json::parse(text);
    for (size_t num_tensors = 1; num_tensors < 40; ++num_tensors) {
      std::vector<uint8_t> left_alone(num_tensors);
      for (size_t i = 0; i < num_tensors; ++i)
        left_alone[i] = rng.Below(40 * num_tensors + i, 3) == 0;
      const Json json = EncodeIntentWords(trainer, left_alone);
      const auto words = DecodeIntentWords(json, num_tensors);
      ASSERT_TRUE(words.ok()) << words.status();
      ASSERT_EQ(words->trainer, trainer);
      ASSERT_EQ(words->left_alone, left_alone);
    }
  }
}

TEST(IntentWords, TakeFourTensorsADigit) {
  EXPECT_EQ(EncodeIntentWords(1, std::vector<uint8_t>{1, 0, 0, 0, 0, 1}).dump(),
            R"({"left_alone":"12","trainer":1})");
}

TEST(IntentWords, ThatAreOfAnotherModelAreNotUsed) {
  for (const char* const text :
       {R"({"left_alone":"12"})", R"({"left_alone":12,"trainer":1})",
        R"({"left_alone":"1","trainer":1})", R"({"left_alone":"123","trainer":1})",
        R"({"left_alone":"1x","trainer":1})", R"({"left_alone":"14","trainer":1})"}) {
    const auto words = DecodeIntentWords(Json::parse(text), 6);
    EXPECT_EQ(ExitCodeOf(words.status()), ExitCode::kCorrupt) << text;
  }
}

}  // namespace
}  // namespace forebay
