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
      max_lengths.push_back(
          std::max<int64_t>(1, GenerationLength(std::ssize(prompt), options, model_.config)));
    }
    FOREBAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<Sequences> sequences,
        CreateCpuSequences(&runner_.decoder(), max_lengths, &runner_.budget()));
    streamed_.resize(prompts.size());
    const auto on_token = [&](size_t answer, int32_t token) -> absl::StatusOr<bool> {
      streamed_[answer].push_back(token);
      if (!on_token_status_.ok()) return on_token_status_;
      return answer == stopped_answer_ && std::ssize(streamed_[answer]) == stopped_after_;
    };
    const auto on_progress = [&](int64_t num_tokens, int64_t most) {
      progress_.push_back({num_tokens, most});
    };
    return Generate(*sequences, runner_.source(), prompts, options, {on_token, on_progress});
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
  size_t stopped_answer_ = 0;
  int64_t stopped_after_ = 0;  // tokens; 0: none is
  std::vector<std::pair<int64_t, int64_t>> progress_;
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
  EXPECT_EQ(Run({.max_tokens = 55})->answers[0].tokens, result->answers[0].tokens);
}

TEST_F(GenerateTest, ALongPromptCutsNoOtherAnswer) {
  const std::vector<std::vector<int32_t>> prompts = {prompt_,
                                                     MakeBatch(model_, {{60}}, 60, 5).tokens};
  const auto result = RunAll(prompts, {.max_tokens = 20});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answers[0].tokens, ReferenceContinuation(20));
  EXPECT_EQ(result->answers[1].tokens.size(), 5u);
}

TEST_F(GenerateTest, EqualPromptsHaveDifferentSamples) {
  const GenerateOptions options = {.max_tokens = 12, .sampling = {1.5, 0.9, 3}};
  const auto result = RunAll({prompt_, prompt_}, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NE(result->answers[0].tokens, result->answers[1].tokens);
  EXPECT_EQ(result->answers[0].tokens, Run(options)->answers[0].tokens);
}

TEST_F(GenerateTest, AnAnswerEndsWhereItsListenerSaysSo) {
  stopped_answer_ = 1;
  stopped_after_ = 3;
  const auto result = RunAll({prompt_, prompt_}, {.max_tokens = 9});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answers[0].tokens.size(), 9u);
  EXPECT_FALSE(result->answers[0].ended);
  EXPECT_EQ(result->answers[1].tokens.size(), 3u);
  EXPECT_TRUE(result->answers[1].ended);
}

TEST_F(GenerateTest, ProgressIsWholeWithTheLastTokenAndNotBefore) {
  stopped_answer_ = 1;
  stopped_after_ = 3;
  const std::vector<std::vector<int32_t>> prompts = {prompt_, prompt_,
                                                     MakeBatch(model_, {{60}}, 60, 5).tokens};
  ASSERT_TRUE(RunAll(prompts, {.max_tokens = 9}).ok());
  ASSERT_EQ(progress_.size(), 9u + 3 + 5);
  for (size_t i = 0; i + 1 < progress_.size(); ++i) {
    EXPECT_EQ(progress_[i].first, static_cast<int64_t>(i) + 1);
    EXPECT_LT(progress_[i].first, progress_[i].second);
  }
  EXPECT_EQ(progress_.back(), std::pair(int64_t{17}, int64_t{17}));
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
