#include "forebay/model/cpu/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference.h"

namespace forebay::cpu {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kVocab = 150;
constexpr double kScale = 0.125;

double LossInDouble(const Doubles& x, const Doubles& weight, std::span<const int32_t> targets) {
  const int64_t tokens = static_cast<int64_t>(targets.size());
  const Doubles logits = ReferenceProduct(x, weight, tokens, kVocab, kHidden, false, true);
  double loss = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    const double* row = &logits[i * kVocab];
    const double max = *std::max_element(row, row + kVocab);
    double sum = 0;
    for (int64_t j = 0; j < kVocab; ++j) sum += std::exp(row[j] - max);
    loss += max + std::log(sum) - row[targets[i]];
  }
  return loss;
}

struct Gradients {
  Doubles dx, dweight;
};
Gradients GradientsInDouble(const Doubles& x, const Doubles& weight,
                            std::span<const int32_t> targets) {
  const int64_t tokens = static_cast<int64_t>(targets.size());
  Doubles d = ReferenceProduct(x, weight, tokens, kVocab, kHidden, false, true);
  for (size_t i = 0; i < targets.size(); ++i) {
    double* row = &d[i * kVocab];
    const double max = *std::max_element(row, row + kVocab);
    double sum = 0;
    for (int64_t j = 0; j < kVocab; ++j) sum += row[j] = std::exp(row[j] - max);
    for (int64_t j = 0; j < kVocab; ++j) row[j] *= targets[i] < 0 ? 0 : kScale / sum;
    if (targets[i] >= 0) row[targets[i]] -= kScale;
  }
  return {ReferenceProduct(d, weight, tokens, kHidden, kVocab, false, false),
          ReferenceProduct(d, x, kVocab, kHidden, tokens, true, false)};
}

// Chunks as in production, and small ones that make every number of chunks and a ragged last one.
std::vector<LossChunks> AllChunks() {
  return {LossChunks(),
          {.max_tokens = 16, .cut = {.most_at_once = kVocab}},
          {.max_tokens = 16, .cut = {.most_at_once = 70, .part_rows = 70}},
          {.max_tokens = 7, .cut = {.most_at_once = 100, .part_rows = 11}}};
}

ProjectionPart PartFrom(const Linear& head, int64_t row) {
  const auto* const weight = static_cast<const std::byte*>(head.weight);
  return {.head = head, .rows = weight + row * head.in * SizeOf(head.dtype), .first_row = row};
}

class CrossEntropyTest : public testing::TestWithParam<size_t> {
 protected:
  CrossEntropyTest() {
    for (int i = 0; i < 61; ++i)
      targets_.push_back(i % 3 == 1 ? -1 : i * 37 % static_cast<int>(kVocab));
  }
  const LossChunks chunks_ = AllChunks()[GetParam()];
  std::vector<int32_t> targets_;
  const Floats x_ = RandomFloats(61 * kHidden, 1, 2.0);
  const std::vector<Bf16> weight_ = ToBf16(RandomFloats(kVocab * kHidden, 2));
  const Floats wide_ = Widened(weight_);
  const Linear head_ = {.dtype = DType::kF32, .weight = wide_.data(), .in = kHidden, .out = kVocab};
  const Linear narrow_head_ = {.weight = weight_.data(), .in = kHidden, .out = kVocab};
};

TEST_P(CrossEntropyTest, LossEqualsFloat64) {
  Context context(2, Precision::kFp32);
  const LossResult result = CrossEntropy(context, head_, x_.data(), targets_, chunks_, {});
  const double expected = LossInDouble(ToDouble(x_), ToDouble(wide_), targets_);
  EXPECT_NEAR(result.loss_sum, expected, 1e-6 * expected);
  EXPECT_EQ(result.num_trained, 41);
}

TEST_P(CrossEntropyTest, GradientsEqualFloat64AndAreAdded) {
  Context context(2, Precision::kFp32);
  const Floats before = RandomFloats(kVocab * kHidden, 3);
  Floats dx(x_.size(), NAN), dweight = before;
  const LossResult result = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_,
                                         {kScale, dx.data(), dweight.data()});
  Gradients expected = GradientsInDouble(ToDouble(x_), ToDouble(wide_), targets_);
  for (size_t i = 0; i < before.size(); ++i) expected.dweight[i] += before[i];
  EXPECT_LT(RelativeError(dx, expected.dx), 5e-6);
  EXPECT_LT(RelativeError(dweight, expected.dweight), 2e-6);
  const LossResult alone = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_, {});
  EXPECT_NEAR(result.loss_sum, alone.loss_sum, 1e-9 * alone.loss_sum);
}

TEST_P(CrossEntropyTest, UntrainedRowsGetZeroGradient) {
  Context context(2, Precision::kFp32);
  Floats dx(x_.size(), NAN), dweight(wide_.size(), 0.0f);
  CrossEntropy(context, head_, x_.data(), targets_, chunks_, {kScale, dx.data(), dweight.data()});
  for (size_t i = 0; i < targets_.size(); ++i) {
    const bool zero = std::all_of(dx.begin() + static_cast<int64_t>(i) * kHidden,
                                  dx.begin() + static_cast<int64_t>(i + 1) * kHidden,
                                  [](float value) { return value == 0.0f; });
    EXPECT_EQ(zero, targets_[i] < 0);
  }
}

TEST_P(CrossEntropyTest, IsTheSameBitsForAllThreadCounts) {
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    Floats dx(x_.size(), NAN), dweight(wide_.size(), 0.0f);
    const LossResult result = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_,
                                           {kScale, dx.data(), dweight.data()});
    dx.insert(dx.end(), dweight.begin(), dweight.end());
    // All bits of the double, in two floats.
    const float high = static_cast<float>(result.loss_sum);
    dx.push_back(high);
    dx.push_back(static_cast<float>(result.loss_sum - high));
    return dx;
  }));
}

// With weights of the part alone, in memory of their own.
TEST_P(CrossEntropyTest, LossAndGradientOfTheInputHaveTheSameBitsInPasses) {
  if (!chunks_.cut.Cuts(kVocab)) return;  // it is not cut
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    Context context(2, precision);
    const size_t tokens = targets_.size();
    Floats dx(x_.size(), NAN), dx_in_passes(x_.size(), NAN);
    Floats log_sum_exp(tokens, NAN), log_sum_exp_in_passes(tokens, NAN);
    const LossResult whole = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_,
                                          {kScale, dx.data(), nullptr, log_sum_exp.data()});
    std::vector<LogitSums> sums(tokens);
    const auto for_parts = [&](const auto& call) {
      const int64_t elem_bytes = SizeOf(narrow_head_.dtype);
      for (int64_t row = 0; row < kVocab; row += chunks_.cut.part_rows) {
        const int64_t num_rows = std::min(chunks_.cut.part_rows, kVocab - row);
        const auto* const first =
            static_cast<const std::byte*>(narrow_head_.weight) + row * kHidden * elem_bytes;
        const std::vector<std::byte> rows(first, first + num_rows * kHidden * elem_bytes);
        call(ProjectionPart{.head = narrow_head_, .rows = rows.data(), .first_row = row});
      }
    };
    for_parts([&](const ProjectionPart& part) {
      LogitSumsOfPart(context, part, x_.data(), targets_, chunks_, sums.data());
    });
    const LossResult in_passes =
        CrossEntropyOfSums(sums.data(), targets_, log_sum_exp_in_passes.data());
    for_parts([&](const ProjectionPart& part) {
      InputGradientOfPart(context, part, x_.data(), targets_, chunks_, kScale,
                          log_sum_exp_in_passes.data(), dx_in_passes.data());
    });
    EXPECT_EQ(in_passes.loss_sum, whole.loss_sum);
    EXPECT_EQ(in_passes.num_trained, whole.num_trained);
    EXPECT_EQ(dx_in_passes, dx);
    for (size_t i = 0; i < tokens; ++i) {
      if (targets_[i] < 0) continue;
      EXPECT_EQ(log_sum_exp_in_passes[i], log_sum_exp[i]) << i;
    }
  }
}

TEST_P(CrossEntropyTest, GradientOfTheWeightsHasTheSameBitsInParts) {
  if (!chunks_.cut.Cuts(kVocab)) return;  // it is not cut
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    Context context(2, precision);
    const Floats before = RandomFloats(kVocab * kHidden, 3);
    Floats dx(x_.size(), NAN), dx_alone(x_.size(), NAN), dweight = before, in_parts = before;
    std::vector<float> log_sum_exp(targets_.size(), NAN);
    const LossResult whole = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_,
                                          {kScale, dx.data(), dweight.data()});
    const LossResult alone = CrossEntropy(context, narrow_head_, x_.data(), targets_, chunks_,
                                          {kScale, dx_alone.data(), nullptr, log_sum_exp.data()});
    EXPECT_EQ(alone.loss_sum, whole.loss_sum);
    EXPECT_EQ(dx_alone, dx);
    EXPECT_NE(dweight, before);
    for (int64_t row = 0; row < kVocab; row += chunks_.cut.part_rows) {
      ProjectionGradient(context, PartFrom(narrow_head_, row), x_.data(), targets_, chunks_, kScale,
                         log_sum_exp.data(), in_parts.data() + row * kHidden);
    }
    EXPECT_EQ(in_parts, dweight);
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, CrossEntropyTest, testing::Range<size_t>(0, 4));

TEST(CrossEntropyReference, GradientsEqualFiniteDifferences) {
  const std::vector<int32_t> targets = {3, -1, 149};
  const Doubles x = ToDouble(RandomFloats(3 * kHidden, 1));
  const Doubles weight = ToDouble(RandomFloats(kVocab * kHidden, 2));
  const Gradients gradients = GradientsInDouble(x, weight, targets);
  const Doubles dx = NumericalGradient(
      [&](const Doubles& v) { return kScale * LossInDouble(v, weight, targets); }, x);
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(gradients.dx[i], dx[i], 1e-8);
  const Doubles dweight = NumericalGradient(
      [&](const Doubles& v) { return kScale * LossInDouble(x, v, targets); }, weight);
  for (size_t i = 0; i < dweight.size(); ++i) EXPECT_NEAR(gradients.dweight[i], dweight[i], 1e-8);
}

TEST(CrossEntropyForwardBackward, EqualsTheChunkedForm) {
  const Floats x = RandomFloats(3 * kHidden, 1), weight = RandomFloats(kVocab * kHidden, 2);
  const std::vector<int32_t> targets = {5, -1, 7};
  const Linear head = {.dtype = DType::kF32, .weight = weight.data(), .in = kHidden, .out = kVocab};
  Context context(2, Precision::kFp32);
  Floats dx(x.size(), NAN), dweight(weight.size(), 0.0f);
  const LossResult both = CrossEntropyForwardBackward(context, head, x.data(), targets, kScale,
                                                      dx.data(), dweight.data());
  const Gradients expected = GradientsInDouble(ToDouble(x), ToDouble(weight), targets);
  EXPECT_LT(RelativeError(dx, expected.dx), 5e-6);
  EXPECT_LT(RelativeError(dweight, expected.dweight), 5e-6);
  EXPECT_EQ(both.loss_sum, CrossEntropyForward(context, head, x.data(), targets).loss_sum);
}

TEST(CrossEntropyForwardBackward, WithoutATrainedTokenIsZero) {
  const Floats x = RandomFloats(2 * kHidden, 1), weight = RandomFloats(kVocab * kHidden, 2);
  const std::vector<int32_t> targets = {-1, -1};
  Context context(1, Precision::kFp32);
  Floats dx(x.size(), NAN), dweight(weight.size(), 0.0f);
  const LossResult result = CrossEntropyForwardBackward(
      context, {.dtype = DType::kF32, .weight = weight.data(), .in = kHidden, .out = kVocab},
      x.data(), targets, kScale, dx.data(), dweight.data());
  EXPECT_EQ(result.num_trained, 0);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(dx, Floats(x.size(), 0.0f));
  EXPECT_EQ(dweight, Floats(weight.size(), 0.0f));
}

TEST(CrossEntropyForward, NaNIsNotHidden) {
  Floats x = RandomFloats(kHidden, 1);
  x[3] = NAN;
  const Floats weight = RandomFloats(kVocab * kHidden, 2);
  Context context(1, Precision::kFp32);
  const std::vector<int32_t> targets = {1};
  const LossResult result = CrossEntropyForward(
      context, {.dtype = DType::kF32, .weight = weight.data(), .in = kHidden, .out = kVocab},
      x.data(), targets);
  EXPECT_TRUE(std::isnan(result.loss_sum));
}

TEST(VocabularyCut, IsOfLargeOnes) {
  const VocabularyCut cut;
  EXPECT_EQ(cut.PartRows(49152), 49152);
  EXPECT_EQ(cut.PartRows(65536), 65536);
  EXPECT_EQ(cut.PartRows(65537), 16384);
  EXPECT_FALSE(cut.Cuts(65536));
  EXPECT_TRUE(cut.Cuts(65537));
}

// Products of the sizes that a model with a large vocabulary has.
TEST(ProjectionGradient, HasTheBitsOfTheWhole) {
  constexpr int64_t kLargeVocab = 70000, kWidth = 64, kTokens = 300;
  const Floats x = RandomFloats(kTokens * kWidth, 1, 2.0);
  const std::vector<Bf16> weight = ToBf16(RandomFloats(kLargeVocab * kWidth, 2));
  const Linear head = {.weight = weight.data(), .in = kWidth, .out = kLargeVocab};
  std::vector<int32_t> targets;
  for (int i = 0; i < kTokens; ++i) targets.push_back(i % 7 == 0 ? -1 : (i * 7919) % kLargeVocab);
  Context context(2, Precision::kBf16);
  Floats dx(x.size(), NAN), dx_alone(x.size(), NAN);
  Floats dweight(weight.size(), 0.0f), in_parts(weight.size(), 0.0f);
  std::vector<float> log_sum_exp(kTokens, NAN);
  CrossEntropyForwardBackward(context, head, x.data(), targets, kScale, dx.data(), dweight.data());
  CrossEntropyForwardBackwardInput(context, head, x.data(), targets, kScale, dx_alone.data(),
                                   log_sum_exp.data());
  EXPECT_EQ(dx_alone, dx);
  for (int64_t row = 0; row < kLargeVocab; row += VocabularyCut().part_rows) {
    ProjectionGradient(context, PartFrom(head, row), x.data(), targets, kScale, log_sum_exp.data(),
                       in_parts.data() + row * kWidth);
  }
  EXPECT_EQ(in_parts, dweight);
}

}  // namespace
}  // namespace forebay::cpu
