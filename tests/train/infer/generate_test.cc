#include "forebay/train/infer/generate.h"

#include <algorithm>
#include <numeric>

#include "forebay/base/errors.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;
using testing::MakeBatch;
using testing::MakeTinyModel;
using testing::Runner;
using testing::TinyModel;

class GenerateTest : public ::testing::Test {
 protected:
  absl::StatusOr<GenerateResult> Run(const GenerateOptions& options) {
    return RunAll({prompt_}, options);
  }
  absl::StatusOr<GenerateResult> RunAll(const std::vector<std::vector<int32_t>>& prompts,
                                        const GenerateOptions& options) {
    std::vector<int64_t> max_lengths;
    for (const auto& prompt : prompts) {
      max_lengths.push_back(std::max<int64_t>(1, GenerationLength(std::ssize(prompt), options)));
    }
    FOREBAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<Sequences> sequences,
        CreateCpuSequences(&runner_.decoder(), max_lengths, &runner_.budget()));
    streamed_.resize(prompts.size());
    return Generate(*sequences, runner_.source(), prompts, options,
                    [&](size_t answer, int32_t token) -> absl::Status {
                      streamed_[answer].push_back(token);
                      return on_token_status_;
                    });
  }

  // The likeliest continuation, each token from a full pass in float64.
  std::vector<int32_t> ReferenceContinuation(int64_t count) {
    MicroBatch batch;
    batch.tokens = prompt_;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t length = static_cast<int64_t>(batch.tokens.size());
      batch.targets.assign(length, -1);
      batch.positions.resize(length);
      std::iota(batch.positions.begin(), batch.positions.end(), 0);
      batch.segments = {{0, length}};
      const auto logits =
          reference::RunReference(model_.config, model_.inventory, model_.weights, batch, 1.0)
              .logits;
      const auto last = logits.end() - model_.config.vocab_size;
      batch.tokens.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
    }
    return {batch.tokens.begin() + prompt_.size(), batch.tokens.end()};
  }

  const TinyModel model_ = MakeTinyModel("LlamaGroupedTied");
  Runner runner_{model_, {2, cpu::Precision::kFp32, /*max_tokens=*/8, /*training=*/false}};
  std::vector<int32_t> prompt_ = MakeBatch(model_, {{11}}, 11).tokens;
  std::vector<std::vector<int32_t>> streamed_;  // by answer
  absl::Status on_token_status_;
};

TEST_F(GenerateTest, GreedyTokensAreTheLikeliestOfFullPasses) {
  const auto result = Run({.max_tokens = 15});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answers[0].tokens, ReferenceContinuation(15));
  EXPECT_EQ(streamed_[0], result->answers[0].tokens);
  EXPECT_EQ(result->answers[0].prompt_tokens, 11);
  EXPECT_FALSE(result->answers[0].ended);
  EXPECT_GT(result->TokensPerSecond(), 0);
  EXPECT_GT(result->PromptTokensPerSecond(), 0);
}

TEST_F(GenerateTest, StopsAtAnyOfTheListedTokens) {
  const std::vector<int32_t> all = Run({.max_tokens = 15})->answers[0].tokens;
  // A token that has not come before its place.
  size_t place = 1;
  while (std::count(all.begin(), all.begin() + place, all[place]) > 0) ++place;
  ASSERT_LT(place, all.size());
  const auto result = Run({.max_tokens = 15, .eos_token_ids = {-1, all[place]}});
  EXPECT_TRUE(result->answers[0].ended);
  EXPECT_EQ(result->answers[0].tokens, std::vector<int32_t>(all.begin(), all.begin() + place + 1));
}

TEST_F(GenerateTest, SamplesAreTheSameForTheSameSeed) {
  const GenerateOptions options = {.max_tokens = 12, .sampling = {1.5, 0.9, 3}};
  const GenerateOptions other = {.max_tokens = 12, .sampling = {1.5, 0.9, 4}};
  const auto first = Run(options);
  EXPECT_EQ(Run(options)->answers[0].tokens, first->answers[0].tokens);
  EXPECT_NE(Run(other)->answers[0].tokens, first->answers[0].tokens);
}

TEST_F(GenerateTest, TheModelsPositionsCanBeUsedToTheLast) {
  // 64 positions: 11 of the prompt, 53 fed back, and one more token that is never fed back.
  const auto result = Run({.max_tokens = 54});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answers[0].tokens.size(), 54u);
  const auto too_long = Run({.max_tokens = 55});
  EXPECT_EQ(ExitCodeOf(too_long.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(too_long.status()), HasSubstr("65 positions, but the model has 64"));
}

TEST_F(GenerateTest, FailureOfTheCallbackEndsIt) {
  on_token_status_ = InterruptedError("enough");
  const auto result = Run({.max_tokens = 15});
  EXPECT_EQ(ExitCodeOf(result.status()), ExitCode::kInterrupted);
  EXPECT_EQ(streamed_[0].size(), 1u);
}

TEST_F(GenerateTest, FailureOfTheSourceIsReturned) {
  runner_.source().FailAfter(9);
  EXPECT_THAT(MessageOf(Run({.max_tokens = 15}).status()), HasSubstr("told to fail"));
}

TEST_F(GenerateTest, EmptyPromptIsRefused) {
  prompt_.clear();
  const auto result = Run({.max_tokens = 15});
  EXPECT_EQ(ExitCodeOf(result.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(result.status()), HasSubstr("no tokens"));
}

TEST_F(GenerateTest, ImpossibleOptionsAreUsageErrors) {
  EXPECT_EQ(ExitCodeOf(Run({.max_tokens = 0}).status()), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(Run({.max_tokens = 1, .sampling = {1.0, 2.0, 0}}).status()),
            ExitCode::kUsage);
}

TEST_F(GenerateTest, AnswersAreThoseOfEachPromptAlone) {
  // The second ends before the others, the third is longer than a pass.
  const std::vector<std::vector<int32_t>> prompts = {prompt_, MakeBatch(model_, {{3}}, 3, 5).tokens,
                                                     MakeBatch(model_, {{30}}, 30, 6).tokens};
  const std::vector<int32_t> second = RunAll({prompts[1]}, {.max_tokens = 9})->answers[0].tokens;
  const GenerateOptions options = {.max_tokens = 9, .eos_token_ids = {second[2]}};
  std::vector<std::vector<int32_t>> alone;
  for (const auto& prompt : prompts) {
    alone.push_back(RunAll({prompt}, options)->answers[0].tokens);
    runner_.source().ForgetExpected();  // an answer that ends early leaves a pass announced
  }
  streamed_.clear();
  const auto together = RunAll(prompts, options);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(streamed_, alone);
  EXPECT_EQ(runner_.source().num_still_expected(), 0u);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together->answers[i].tokens, alone[i]);
  EXPECT_TRUE(together->answers[1].ended);
  EXPECT_GT(together->SecondsPerAnswer(), 0);
}

TEST_F(GenerateTest, AnnouncesTheNextPassBeforeAPassBegins) {
  ASSERT_TRUE(Run({.max_tokens = 5}).ok());
  const size_t reads_of_pass =
      model_.inventory.layers().size() + (model_.config.tied_embeddings ? 1 : 0);
  EXPECT_EQ(runner_.source().most_expected(), 2 * reads_of_pass);
  EXPECT_EQ(runner_.source().num_still_expected(), 0u);
}

TEST_F(GenerateTest, CacheIsGivenBack) {
  const int64_t before = runner_.budget().used_bytes();
  ASSERT_TRUE(Run({.max_tokens = 5}).ok());
  EXPECT_EQ(runner_.budget().used_bytes(), before);
}

}  // namespace
}  // namespace forebay
