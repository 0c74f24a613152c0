#include "forebay/train/start/unlike_others.h"

#include <fstream>

#include "forebay/tests/temporary_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

// The line for a model with this config.json.
std::string LineFor(const std::string& config, const ResolvedOptions& resolved) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/config.json") << config;
  const auto line = UnlikeOtherTrainers(folder.path(), resolved);
  return line.ok() ? *line : line.status().ToString();
}

TEST(UnlikeOthers, DropoutRatesThatAreNotUsedAreNamed) {
  const std::string line = LineFor(
      R"({"model_type": "llama", "attention_dropout": 0.1, "resid_pdrop": 0.05, "hidden_dropout": 0.0,
          "classifier_dropout": 0.3, "dropout_note": "x", "layerdrop": null})",
      ResolvedFrom({}, "flag"));
  EXPECT_THAT(line, HasSubstr("(attention_dropout 0.1, resid_pdrop 0.05)"));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
}

TEST(UnlikeOthers, RatesThatGpt2HasWithoutSayingSoAreNamed) {
  const std::string line =
      LineFor(R"({"model_type": "gpt2", "attn_pdrop": 0.0})", ResolvedFrom({}, "flag"));
  EXPECT_THAT(line, HasSubstr("(embd_pdrop 0.1, resid_pdrop 0.1)"));
}

TEST(UnlikeOthers, AModelWithoutDropoutHasNoWordOfIt) {
  EXPECT_THAT(
      LineFor(R"({"model_type": "llama", "attention_dropout": 0.0})", ResolvedFrom({}, "flag")),
      Not(HasSubstr("dropout")));
}

TEST(UnlikeOthers, DefaultsThatAreOthersAreNamedWhereTheyCount) {
  TrainOptions options;
  const std::string all = LineFor("{}", ResolvedFrom(options, "default"));
  EXPECT_THAT(all, HasSubstr("--batch=4 (there 8), --epochs=1 (there 3), --lr=2e-05 (there 5e-05), "
                             "--weight_decay=0.01 (there 0)"));
  options.steps = 5;
  EXPECT_THAT(LineFor("{}", ResolvedFrom(options, "default")), Not(HasSubstr("--epochs")));
  EXPECT_THAT(LineFor("{}", ResolvedFrom(options, "flag")), Not(HasSubstr("there")));
}

}  // namespace
}  // namespace forebay
