// Generation with cached keys and values against the full forward pass.
#include <cmath>
#include <numeric>

#include "forebay/base/errors.h"
#include "forebay/model/vocabulary_parts.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "forebay/tests/step/piecewise_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

using ::testing::HasSubstr;

// Workspace of 8 tokens: longer prompts go in several chunks.
DecoderOptions ExtendOptions(int64_t max_tokens = 8) {
  return {2, cpu::Precision::kFp32, max_tokens, /*training=*/false};
}

std::vector<double> ReferenceLogits(const TinyModel& model, const std::vector<int32_t>& tokens) {
  MicroBatch batch;
  batch.tokens = tokens;
  batch.targets.assign(tokens.size(), -1);
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.segments = {{0, static_cast<int64_t>(tokens.size())}};
  const auto result =
      reference::RunReference(model.config, model.inventory, model.weights, batch, 1.0);
  return {result.logits.end() - model.config.vocab_size, result.logits.end()};
}

void ExpectLogits(const TinyModel& model, const std::vector<int32_t>& tokens,
                  const std::vector<float>& logits) {
  const std::vector<double> expected = ReferenceLogits(model, tokens);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(logits[i], expected[i], 1e-5 * (1 + std::abs(expected[i])))
        << tokens.size() << " tokens, logit " << i;
  }
}

// Two sequences at once, in chunks; the second has no new tokens in the last call.
TEST(Extend, HasTheSameLogitsWithALargeVocabularyInPieces) {
  for (const bool tied : {true, false}) {
    for (const cpu::Precision precision : {cpu::Precision::kFp32, cpu::Precision::kBf16}) {
      const DType dtype = cpu::WeightDType(precision);
      const TinyModel model = MakeLargeVocabularyModel(tied, dtype);
      Runner runner(model, {2, precision, /*max_tokens=*/8, /*training=*/false}, dtype);
      PiecewiseSource in_pieces(&runner.source(), PieceElemsOf(model.config));
      const auto logits_of = [&](ParamSource& source) {
        std::vector<KvCache> caches;
        for (int i = 0; i < 2; ++i) {
          caches.push_back(*KvCache::Create(&runner.budget(), model.config, 30));
        }
        const auto vocab = static_cast<size_t>(model.config.vocab_size);
        std::vector<float> all, logits(2 * vocab);
        const std::vector<int32_t> first = MakeBatch(model, {{19}}, 19).tokens;
        const std::vector<int32_t> second = {7, 65540, 20000};
        const std::vector<std::vector<std::vector<int32_t>>> calls = {
            {first, second}, {{40000}, {3}}, {{1, 65000}, {}}};
        for (const auto& call : calls) {
          const std::vector<std::span<const int32_t>> tokens(call.begin(), call.end());
          EXPECT_TRUE(runner.decoder().Extend(source, tokens, caches, logits).ok());
          all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
      };
      EXPECT_EQ(logits_of(in_pieces), logits_of(runner.source()));
      EXPECT_FALSE(in_pieces.pieces_read().empty());
    }
  }
}

class ExtendFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(ExtendFamilies, LogitsOfPromptAndEveryTokenEqualTheFullPass) {
  const TinyModel model = MakeTinyModel(GetParam());
  Runner runner(model, ExtendOptions());
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 30);
  const std::vector<int32_t> all = MakeBatch(model, {{26}}, 26).tokens;
  std::vector<int32_t> tokens(all.begin(), all.begin() + 21);  // chunks of 8, 8 and 5
  std::vector<float> logits(model.config.vocab_size);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), tokens, cache, logits).ok());
  ExpectLogits(model, tokens, logits);
  for (size_t i = tokens.size(); i < all.size(); ++i) {
    ASSERT_TRUE(runner.decoder().Extend(runner.source(), {&all[i], 1}, cache, logits).ok());
    tokens.push_back(all[i]);
    ExpectLogits(model, tokens, logits);
  }
  EXPECT_EQ(cache.length(), 26);
  EXPECT_EQ(runner.source().num_still_expected(), 0u);
  EXPECT_LE(runner.source().most_leases_held(), 2);
}

TEST_P(ExtendFamilies, WhereTheWeightsLieChangesNoBit) {
  for (const auto precision : {cpu::Precision::kFp32, cpu::Precision::kBf16}) {
    const DType dtype = cpu::WeightDType(precision);
    const TinyModel model = MakeTinyModel(GetParam(), dtype);
    DecoderOptions options = ExtendOptions();
    options.precision = precision;
    Runner runner(model, options, dtype);
    std::vector<int32_t> tokens = MakeBatch(model, {{9}}, 9).tokens;
    std::vector<std::vector<float>> logits;
    const std::vector<int64_t> shifts = {0, SizeOf(dtype), 8, 504, 4092};
    for (const int64_t shift : shifts) {
      runner.source().ShiftTo(shift);
      KvCache cache = *KvCache::Create(&runner.budget(), model.config, 10);
      for (const size_t count : {8, 1}) {  // products of matrices, and of a vector
        std::vector<float>& out = logits.emplace_back(model.config.vocab_size);
        const std::span<const int32_t> next =
            std::span(tokens).subspan(static_cast<size_t>(cache.length()), count);
        ASSERT_TRUE(runner.decoder().Extend(runner.source(), next, cache, out).ok());
      }
      const size_t last = logits.size() - 1;
      EXPECT_EQ(logits[last - 1], logits[0]) << "shifted by " << shift;
      EXPECT_EQ(logits[last], logits[1]) << "shifted by " << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExtendFamilies, ::testing::ValuesIn(TinyModelNames()),
                         [](const auto& test) { return test.param; });

TEST(Extend, SequencesThatGoTogetherHaveTheLogitsOfEachAlone) {
  const TinyModel model = MakeTinyModel("LlamaGroupedTied");
  Runner runner(model, ExtendOptions());
  const std::vector<std::vector<int32_t>> tokens = {
      MakeBatch(model, {{3}}, 3).tokens, {}, MakeBatch(model, {{14}}, 14, 2).tokens};
  const std::vector<std::span<const int32_t>> spans(tokens.begin(), tokens.end());
  std::vector<KvCache> caches;
  std::vector<std::vector<float>> alone;
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  for (const auto& of_sequence : tokens) {
    KvCache cache = *KvCache::Create(&runner.budget(), model.config, 20);
    alone.emplace_back(vocab, 7.0f);
    if (!of_sequence.empty()) {
      ASSERT_TRUE(runner.decoder().Extend(runner.source(), of_sequence, cache, alone.back()).ok());
    }
    caches.push_back(*KvCache::Create(&runner.budget(), model.config, 20));
  }
  std::vector<float> logits(3 * vocab, 7.0f);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), spans, caches, logits).ok());
  for (size_t i = 0; i < alone.size(); ++i) {
    // Cut elsewhere into passes, so that matrix products add in another order.
    for (size_t j = 0; j < vocab; ++j) {
      EXPECT_NEAR(logits[i * vocab + j], alone[i][j], 1e-5 * (1 + std::abs(alone[i][j])));
    }
    EXPECT_EQ(caches[i].length(), std::ssize(tokens[i]));
  }
  EXPECT_EQ(runner.source().num_still_expected(), 0u);

  // One fails: all are as before.
  runner.source().FailAfter(4);
  EXPECT_FALSE(runner.decoder().Extend(runner.source(), spans, caches, logits).ok());
  EXPECT_EQ(caches[0].length(), 3);
  EXPECT_EQ(caches[2].length(), 14);
}

TEST(Extend, TrainingWorkspaceGeneratesToo) {
  const TinyModel model = MakeTinyModel("Qwen3WideHeads");
  DecoderOptions options = ExtendOptions();
  options.training = true;
  Runner runner(model, options);
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 12);
  const std::vector<int32_t> tokens = MakeBatch(model, {{12}}, 12).tokens;
  std::vector<float> logits(model.config.vocab_size);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), tokens, cache, logits).ok());
  ExpectLogits(model, tokens, logits);
}

TEST(Extend, TruncatedCacheContinuesFromItsNewEnd) {
  const TinyModel model = MakeTinyModel("LlamaGroupedTied");
  Runner runner(model, ExtendOptions());
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 20);
  const std::vector<int32_t> first = MakeBatch(model, {{10}}, 10).tokens;
  const std::vector<int32_t> second = MakeBatch(model, {{4}}, 4, /*seed=*/2).tokens;
  std::vector<float> logits(model.config.vocab_size);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), first, cache, logits).ok());
  cache.Truncate(6);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), second, cache, logits).ok());
  std::vector<int32_t> joined(first.begin(), first.begin() + 6);
  joined.insert(joined.end(), second.begin(), second.end());
  ExpectLogits(model, joined, logits);
}

TEST(Extend, SequenceLongerThanTheCacheIsRefusedAndLeavesItAsItWas) {
  const TinyModel model = MakeTinyModel("LlamaGroupedTied");
  Runner runner(model, ExtendOptions());
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 10);
  const std::vector<int32_t> tokens = MakeBatch(model, {{6}}, 6).tokens;
  std::vector<float> logits(model.config.vocab_size);
  ASSERT_TRUE(runner.decoder().Extend(runner.source(), tokens, cache, logits).ok());
  const absl::Status status = runner.decoder().Extend(runner.source(), tokens, cache, logits);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("6 tokens do not fit behind the 6"));
  EXPECT_EQ(cache.length(), 6);
  EXPECT_EQ(runner.source().num_still_expected(), 0u);
}

TEST(Extend, TokenOutsideTheVocabularyIsRefused) {
  const TinyModel model = MakeTinyModel("LlamaGroupedTied");
  Runner runner(model, ExtendOptions());
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 10);
  std::vector<float> logits(model.config.vocab_size);
  for (const int32_t token : {-1, 61}) {
    const absl::Status status =
        runner.decoder().Extend(runner.source(), {&token, 1}, cache, logits);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
    EXPECT_THAT(MessageOf(status), HasSubstr("outside the model's vocabulary of 61"));
  }
  EXPECT_EQ(cache.length(), 0);
}

TEST(Extend, FailureOfTheSourceInALaterChunkLeavesTheCacheAsItWas) {
  const TinyModel model = MakeTinyModel("LlamaGroupedTied");
  Runner runner(model, ExtendOptions());
  KvCache cache = *KvCache::Create(&runner.budget(), model.config, 30);
  const std::vector<int32_t> tokens = MakeBatch(model, {{20}}, 20).tokens;
  std::vector<float> logits(model.config.vocab_size);
  runner.source().FailAfter(4);  // the first chunk takes three layers
  const absl::Status status = runner.decoder().Extend(runner.source(), tokens, cache, logits);
  EXPECT_THAT(MessageOf(status), HasSubstr("told to fail"));
  EXPECT_EQ(cache.length(), 0);
}

TEST(KvCache, LongerThanTheModelsPositionsIsRefused) {
  const TinyModel model = MakeTinyModel("Gpt2");
  MemoryBudget budget(0);
  const auto cache = KvCache::Create(&budget, model.config, 65);
  EXPECT_EQ(ExitCodeOf(cache.status()), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(cache.status()), HasSubstr("65 positions, but the model has 64"));
}

TEST(KvCache, ChargesExactlyBytesFor) {
  for (const std::string& name : TinyModelNames()) {
    const TinyModel model = MakeTinyModel(name);
    MemoryBudget budget(0);
    const KvCache cache = *KvCache::Create(&budget, model.config, 37);
    EXPECT_EQ(budget.used_bytes(), KvCache::BytesFor(model.config, 37));
  }
}

TEST(KvCache, BudgetTooSmallIsAnError) {
  const TinyModel model = MakeTinyModel("Gpt2");
  MemoryBudget budget(100);
  EXPECT_EQ(ExitCodeOf(KvCache::Create(&budget, model.config, 37).status()),
            ExitCode::kOutOfMemory);
}

}  // namespace
}  // namespace forebay::testing
