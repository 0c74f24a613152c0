// What a pass through the decoder promises beyond its values.
#include "forebay/model/decoder.h"

#include <algorithm>

#include "forebay/tests/model/decoder/tiny_models.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

DecoderOptions Options(cpu::Precision precision = cpu::Precision::kFp32, int num_threads = 2) {
  return {num_threads, precision, /*max_tokens=*/80, /*training=*/true};
}

// The loss of one segment: everything else's targets are forgotten.
double LossOfSegment(Runner& runner, MicroBatch batch, const Segment& segment) {
  for (int64_t i = 0; i < static_cast<int64_t>(batch.tokens.size()); ++i) {
    const bool inside = i >= segment.begin && i < segment.begin + segment.length;
    if (!inside) batch.targets[i] = -1;
  }
  return runner.Loss(batch);
}

class DecoderFamilies : public ::testing::TestWithParam<std::string> {};

// Of a sample, and of others around it. 16 tokens and more: the libraries of GEMMs sum a row in
// another order where a product has fewer rows.
const std::vector<int64_t> kAlone = {17};
const std::vector<int64_t> kPacked = {5, 17, 8};

TEST_P(DecoderFamilies, LossOfASampleIsTheSameBitsWhateverItsNeighbours) {
  const TinyModel model = MakeTinyModel(GetParam());
  MicroBatch alone = MakeBatch(model, {kAlone}, 17, /*seed=*/3);
  MicroBatch packed = MakeBatch(model, {kPacked, {20, 4}}, 30, /*seed=*/4);
  const Segment segment = packed.segments[1];
  std::copy(alone.tokens.begin(), alone.tokens.end(), packed.tokens.begin() + segment.begin);
  std::copy(alone.targets.begin(), alone.targets.end(), packed.targets.begin() + segment.begin);
  Runner runner(model, Options());
  EXPECT_EQ(LossOfSegment(runner, packed, segment), runner.Loss(alone));
  // And it does depend on its own tokens.
  alone.tokens[2] = (alone.tokens[2] + 1) % model.config.vocab_size;
  EXPECT_NE(LossOfSegment(runner, packed, segment), runner.Loss(alone));
}

TEST_P(DecoderFamilies, LossOfAShortSampleIsTheSameBitsBesideOtherTokens) {
  for (const cpu::Precision precision : {cpu::Precision::kFp32, cpu::Precision::kBf16}) {
    const DType dtype = precision == cpu::Precision::kFp32 ? DType::kF32 : DType::kBF16;
    const TinyModel model = MakeTinyModel(GetParam(), dtype);
    const MicroBatch some = MakeBatch(model, {{5, 13, 9}, {20, 4}}, 30, /*seed=*/4);
    const Segment segment = some.segments[1];
    MicroBatch others = MakeBatch(model, {{5, 13, 9}, {20, 4}}, 30, /*seed=*/5);
    for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
      others.tokens[i] = some.tokens[i];
      others.targets[i] = some.targets[i];
    }
    ASSERT_NE(some.tokens, others.tokens);
    Runner runner(model, Options(precision), dtype);
    EXPECT_EQ(LossOfSegment(runner, others, segment), LossOfSegment(runner, some, segment));
  }
}

TEST_P(DecoderFamilies, GradientsOfASampleIgnoreItsNeighbours) {
  const TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch alone = MakeBatch(model, {kAlone}, 17, /*seed=*/3);
  MicroBatch packed = MakeBatch(model, {kPacked}, 30, /*seed=*/4);
  const Segment segment = packed.segments[1];
  std::fill(packed.targets.begin(), packed.targets.end(), -1);
  std::copy(alone.tokens.begin(), alone.tokens.end(), packed.tokens.begin() + segment.begin);
  std::copy(alone.targets.begin(), alone.targets.end(), packed.targets.begin() + segment.begin);
  packed.num_trained = alone.num_trained;
  Runner alone_runner(model, Options());
  Runner packed_runner(model, Options());
  alone_runner.LossAndGradients(alone, 0.1);
  packed_runner.LossAndGradients(packed, 0.1);
  for (size_t layer = 0; layer < alone_runner.gradients().size(); ++layer) {
    EXPECT_THAT(packed_runner.gradients()[layer],
                ::testing::Pointwise(::testing::FloatNear(2e-6f), alone_runner.gradients()[layer]))
        << layer;
  }
}

TEST_P(DecoderFamilies, ResultsAreTheSameBitsForEveryNumberOfThreads) {
  for (const cpu::Precision precision : {cpu::Precision::kFp32, cpu::Precision::kBf16}) {
    const DType dtype = precision == cpu::Precision::kFp32 ? DType::kF32 : DType::kBF16;
    const TinyModel model = MakeTinyModel(GetParam(), dtype);
    const MicroBatch batch = MakeBatch(model, {{30, 9}, {40}}, 40);
    Runner one(model, Options(precision, 1), dtype);
    const double loss = one.LossAndGradients(batch, 0.05);
    for (const int num_threads : {2, 3}) {
      Runner many(model, Options(precision, num_threads), dtype);
      EXPECT_EQ(many.LossAndGradients(batch, 0.05), loss);
      EXPECT_EQ(many.gradients(), one.gradients());
    }
  }
}

TEST_P(DecoderFamilies, RepeatedPassesGiveTheSameBits) {
  const TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch batch = MakeBatch(model, {{30, 9}}, 40);
  const MicroBatch other = MakeBatch(model, {{50}}, 60, /*seed=*/9);
  Runner runner(model, Options());
  const double loss = runner.LossAndGradients(batch, 0.05);
  const auto gradients = runner.gradients();
  runner.LossAndGradients(other, 0.05);
  runner.ZeroGradients();
  EXPECT_EQ(runner.LossAndGradients(batch, 0.05), loss);
  EXPECT_EQ(runner.gradients(), gradients);
}

TEST_P(DecoderFamilies, EvaluationGivesTheLossOfTraining) {
  const TinyModel model = MakeTinyModel(GetParam());
  const MicroBatch batch = MakeBatch(model, {{30, 9}}, 40);
  DecoderOptions evaluation = Options();
  evaluation.training = false;
  Runner training(model, Options());
  Runner evaluating(model, evaluation);
  EXPECT_EQ(evaluating.Loss(batch), training.LossAndGradients(batch, 1.0));
}

TEST_P(DecoderFamilies, PaddingHasNoGradient) {
  const TinyModel model = MakeTinyModel(GetParam());
  MicroBatch padded = MakeBatch(model, {{12}}, 20);
  const int32_t padding_token = 2;
  std::fill(padded.tokens.begin() + 12, padded.tokens.end(), padding_token);
  Runner runner(model, Options());
  runner.LossAndGradients(padded, 1.0);
  const auto with_padding = runner.gradients();
  std::fill(padded.tokens.begin() + 12, padded.tokens.end(), padding_token + 1);
  runner.ZeroGradients();
  runner.LossAndGradients(padded, 1.0);
  EXPECT_EQ(runner.gradients(), with_padding);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderFamilies, ::testing::ValuesIn(TinyModelNames()),
                         [](const auto& test) { return test.param; });

TEST(Decoder, SlidingWindowHidesWhatLiesBeforeIt) {
  // Two layers that see 5 keys each: the last token depends on the 9 before and on itself, nothing
  // else.
  const TinyModel model = MakeTinyModel("MistralWindow");
  MicroBatch batch = MakeBatch(model, {{20}}, 20);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  batch.targets[19] = 1;
  Runner runner(model, Options());
  const double loss = runner.Loss(batch);
  batch.tokens[10] = (batch.tokens[10] + 1) % model.config.vocab_size;
  EXPECT_EQ(runner.Loss(batch), loss);
  batch.tokens[11] = (batch.tokens[11] + 1) % model.config.vocab_size;
  EXPECT_NE(runner.Loss(batch), loss);
}

}  // namespace
}  // namespace forebay::testing
