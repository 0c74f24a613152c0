#include "forebay/train/infer/token_sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

TokenSampler Sampler(SamplingOptions options, int64_t vocab_size) {
  return *TokenSampler::Create(options, vocab_size);
}

// How often each token comes in `draws` positions.
std::map<int32_t, int> Draw(TokenSampler sampler, const std::vector<float>& logits, int draws) {
  std::map<int32_t, int> counts;
  for (int position = 0; position < draws; ++position) ++counts[*sampler.Next(logits, 0, position)];
  return counts;
}

TEST(TokenSampler, TemperatureZeroTakesTheLikeliest) {
  EXPECT_EQ(*Sampler({}, 4).Next(std::vector<float>{0.5f, 2.0f, -1.0f, 1.9f}, 0, 3), 1);
}

TEST(TokenSampler, OfEquallyLikelyTokensTemperatureZeroTakesTheLowestId) {
  EXPECT_EQ(*Sampler({}, 4).Next(std::vector<float>{0.5f, 2.0f, 2.0f, 2.0f}, 0, 3), 1);
}

TEST(TokenSampler, DrawsFollowTheProbabilities) {
  // Probabilities 0.1, 0.2, 0.3, 0.4.
  std::vector<float> logits;
  for (const double p : {0.1, 0.2, 0.3, 0.4}) logits.push_back(static_cast<float>(std::log(p)));
  const auto counts = Draw(Sampler({1.0, 1.0, 5}, 4), logits, 20000);
  for (int token = 0; token < 4; ++token) {
    // Four standard deviations of a binomial count.
    const double p = 0.1 * (token + 1);
    EXPECT_NEAR(counts.at(token), 20000 * p, 4 * std::sqrt(20000 * p * (1 - p))) << token;
  }
}

TEST(TokenSampler, TemperatureDividesTheLogits) {
  const std::vector<float> logits = {0.0f, std::log(4.0f)};  // at 2.0: odds of 1 to 2
  const auto counts = Draw(Sampler({2.0, 1.0, 5}, 2), logits, 20000);
  EXPECT_NEAR(counts.at(1), 20000 * 2.0 / 3, 4 * std::sqrt(20000 * 2.0 / 9));
}

TEST(TokenSampler, TopPKeepsTheTokenThatCrossesTheThreshold) {
  std::vector<float> logits;
  for (const double p : {0.1, 0.2, 0.3, 0.4}) logits.push_back(static_cast<float>(std::log(p)));
  // 0.4 and 0.3 reach 0.6: 4 to 3 among themselves.
  const auto counts = Draw(Sampler({1.0, 0.6, 5}, 4), logits, 20000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(3), 20000 * 4.0 / 7, 4 * std::sqrt(20000 * 12.0 / 49));
}

TEST(TokenSampler, TinyTopPIsGreedy) {
  const auto counts = Draw(Sampler({1.0, 1e-9, 5}, 4), {0.1f, 0.3f, 0.3f, 0.2f}, 200);
  EXPECT_THAT(counts, ::testing::ElementsAre(::testing::Pair(1, 200)));
}

TEST(TokenSampler, ChoiceDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(1000, 0.0f);
  TokenSampler first = Sampler({1.0, 1.0, 5}, 1000);
  TokenSampler second = Sampler({1.0, 1.0, 5}, 1000);
  TokenSampler other = Sampler({1.0, 1.0, 6}, 1000);
  const int32_t at_seven = *first.Next(logits, 0, 7);
  *first.Next(logits, 0, 8);
  EXPECT_EQ(*second.Next(logits, 0, 7), at_seven);
  EXPECT_NE(*second.Next(logits, 0, 8), at_seven);
  EXPECT_NE(*other.Next(logits, 0, 7), at_seven);
}

TEST(TokenSampler, SequencesDrawApart) {
  const std::vector<float> logits(100, 0.0f);
  TokenSampler sampler = Sampler({1.0, 1.0, 5}, 100);
  const int32_t of_first = *sampler.Next(logits, 0, 7);
  EXPECT_NE(*sampler.Next(logits, 1, 7), of_first);
  EXPECT_EQ(*sampler.Next(logits, 0, 7), of_first);
}

TEST(TokenSampler, ImpossibleTokensAreNeverDrawn) {
  const float never = -std::numeric_limits<float>::infinity();
  const auto counts = Draw(Sampler({1.0, 1.0, 5}, 4), {never, 0.0f, never, never}, 500);
  EXPECT_THAT(counts, ::testing::ElementsAre(::testing::Pair(1, 500)));
}

TEST(TokenSampler, LogitsThatAreNotFiniteAreANumericalError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : std::vector<std::vector<float>>{
           {0.0f, nan}, {nan, 0.0f}, {infinity, 0.0f}, {-infinity, -infinity}}) {
    const auto token = Sampler({}, 2).Next(logits, 0, 9);
    EXPECT_EQ(ExitCodeOf(token.status()), ExitCode::kNumerical);
    EXPECT_THAT(MessageOf(token.status()), HasSubstr("position 9"));
  }
}

TEST(TokenSampler, ImpossibleOptionsAreUsageErrors) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const SamplingOptions options :
       {SamplingOptions{-0.1, 1, 0}, SamplingOptions{nan, 1, 0}, SamplingOptions{1, 0, 0},
        SamplingOptions{1, 1.01, 0}, SamplingOptions{1, nan, 0}}) {
    EXPECT_EQ(ExitCodeOf(TokenSampler::Create(options, 4).status()), ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace forebay
