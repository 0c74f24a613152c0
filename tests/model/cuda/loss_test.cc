// Cross-entropy on a GPU.
#include "forebay/model/cuda/loss.h"

#include "forebay/model/cuda/loss_sizes.h"
#include "gpu_operands.h"

namespace forebay::cuda {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kTokens = 21;
constexpr double kScale = 0.125;

class LossOnGpu : public GpuOps {
 protected:
  void Prepare(int64_t vocab) {
    vocab_ = vocab;
    x_ = Random(kTokens * kHidden, 1);
    weight_ = Random(vocab * kHidden, 2);
    targets_.clear();
    for (int i = 0; i < kTokens; ++i) {
      targets_.push_back(i % 3 == 1 ? -1 : static_cast<int>((i * 37 + vocab - 1) % vocab));
    }
    on_x_ = OnDevice(x_);
    on_weight_ = OnDevice(weight_);
    on_targets_ = ArrayOnDevice(targets_);
    sum_ = ArrayOnDevice(std::vector<double>{NAN});
  }
  static std::vector<LossChunks> ChunksOf(int64_t vocab) {
    const VocabularyCut cut = {.most_at_once = 100, .part_rows = 64};
    return {{},
            {.most_logits = 8 * LogitStride(vocab)},
            {.cut = cut},
            {.most_logits = 8 * LogitStride(vocab), .cut = cut}};
  }
  Linear Head() const {
    return {.dtype = GetParam(), .weight = on_weight_.address(), .in = kHidden, .out = vocab_};
  }
  Linear CpuHead() const {
    return {.dtype = DType::kF32, .weight = weight_.data(), .in = kHidden, .out = vocab_};
  }
  double Sum() {
    double sum = 0;
    EXPECT_TRUE(
        stream_->CopyToHost(std::as_writable_bytes(std::span(&sum, 1)), sum_.address()).ok());
    EXPECT_TRUE(stream_->Await().ok());
    return sum;
  }

  int64_t vocab_ = 0;
  Floats x_, weight_;
  std::vector<int32_t> targets_;
  DeviceValues on_x_, on_weight_;
  DeviceBuffer on_targets_, sum_;
};

// Vocabularies that end within an access, within a block's first pass, and behind it; one chunk,
// and several of which the last is smaller; whole, and cut.
TEST_P(LossOnGpu, LossAndGradientsAreTheCpus) {
  for (const int64_t vocab : {int64_t{5}, int64_t{150}, int64_t{2100}}) {
    Prepare(vocab);
    Floats dx(x_.size()), dweight = cpu::RandomFloats(vocab * kHidden, 3);
    const DeviceValues before = Fp32OnDevice(dweight);
    const cpu::LossResult expected = cpu::CrossEntropyForwardBackward(
        cpu_, CpuHead(), x_.data(), targets_, kScale, dx.data(), dweight.data());
    for (const LossChunks& chunks : ChunksOf(vocab)) {
      SCOPED_TRACE(testing::Message() << chunks.most_logits << " " << chunks.cut.part_rows);
      ASSERT_TRUE(CrossEntropy(*context_, Head(), on_x_.address(), on_targets_.As<int32_t>(),
                               kTokens, chunks, {}, sum_.As<double>())
                      .ok());
      EXPECT_NEAR(Sum(), expected.loss_sum, 2e-6 * expected.loss_sum);
      const DeviceValues on_dx = Unset(kTokens * kHidden);
      const DeviceValues on_dweight = Fp32OnDevice(ToHost(before));
      ASSERT_TRUE(
          CrossEntropy(*context_, Head(), on_x_.address(), on_targets_.As<int32_t>(), kTokens,
                       chunks,
                       {.scale = kScale, .dx = on_dx.address(), .dweight = on_dweight.floats()},
                       sum_.As<double>())
              .ok());
      EXPECT_NEAR(Sum(), expected.loss_sum, 2e-6 * expected.loss_sum);
      // Gradients of logits are rounded to the operands' type: so much of their largest, kScale.
      const double rounding = kScale * SpacingOf(GetParam());
      for (size_t i = 0; const float value : ToHost(on_dx)) {
        EXPECT_NEAR(value, dx[i], 8 * rounding + 1e-6) << i;
        EXPECT_TRUE(targets_[i / kHidden] >= 0 || value == 0.0f) << i;
        ++i;
      }
      for (size_t i = 0; const float value : ToHost(on_dweight)) {
        EXPECT_NEAR(value, dweight[i], 4 * rounding + 1e-6) << i;
        ++i;
      }
    }
  }
}

TEST_P(LossOnGpu, GradientOfTheWeightsHasTheSameBitsInParts) {
  for (const int64_t vocab : {int64_t{150}, int64_t{2100}}) {
    Prepare(vocab);
    for (const LossChunks& chunks : ChunksOf(vocab)) {
      if (!chunks.cut.Cuts(vocab)) continue;
      SCOPED_TRACE(chunks.most_logits);
      const Floats before = cpu::RandomFloats(vocab * kHidden, 3);
      const DeviceValues dx = Unset(kTokens * kHidden), dx_alone = Unset(kTokens * kHidden);
      const DeviceValues dweight = Fp32OnDevice(before), in_parts = Fp32OnDevice(before);
      const DeviceValues log_sum_exp = Fp32OnDevice(Floats(kTokens, NAN));
      const auto loss = [&](const LossGradients& gradients) {
        return CrossEntropy(*context_, Head(), on_x_.address(), on_targets_.As<int32_t>(), kTokens,
                            chunks, gradients, sum_.As<double>());
      };
      ASSERT_TRUE(loss({.scale = kScale, .dx = dx.address(), .dweight = dweight.floats()}).ok());
      const double sum = Sum();
      ASSERT_TRUE(
          loss({.scale = kScale, .dx = dx_alone.address(), .log_sum_exp = log_sum_exp.floats()})
              .ok());
      EXPECT_EQ(Sum(), sum);
      EXPECT_EQ(ToHost(dx_alone), ToHost(dx));
      for (int64_t row = 0; row < vocab; row += chunks.cut.part_rows) {
        ASSERT_TRUE(ProjectionGradient(*context_, Head(), on_x_.address(),
                                       on_targets_.As<int32_t>(), kTokens, chunks, kScale,
                                       log_sum_exp.floats(), row, in_parts.floats() + row * kHidden)
                        .ok());
      }
      EXPECT_NE(ToHost(dweight), before);
      EXPECT_EQ(ToHost(in_parts), ToHost(dweight));
    }
  }
}

TEST_P(LossOnGpu, TheOperatorsTakeWholeChunks) {
  Prepare(150);
  const double expected = cpu::CrossEntropyForward(cpu_, CpuHead(), x_.data(), targets_).loss_sum;
  const DeviceValues dx = Unset(kTokens * kHidden);
  const DeviceValues dweight = Fp32OnDevice(Floats(weight_.size(), 0.0f));
  ASSERT_TRUE(CrossEntropyForward(*context_, Head(), on_x_.address(), on_targets_.As<int32_t>(),
                                  kTokens, sum_.As<double>())
                  .ok());
  EXPECT_NEAR(Sum(), expected, 2e-6 * expected);
  ASSERT_TRUE(CrossEntropyForwardBackward(*context_, Head(), on_x_.address(),
                                          on_targets_.As<int32_t>(), kTokens, kScale,
                                          sum_.As<double>(), dx.address(), dweight.floats())
                  .ok());
  EXPECT_NEAR(Sum(), expected, 2e-6 * expected);
}

TEST_P(LossOnGpu, WithoutATrainedTokenIsZero) {
  Prepare(50);
  const DeviceBuffer none = ArrayOnDevice(std::vector<int32_t>(kTokens, -1));
  const DeviceValues dx = Unset(kTokens * kHidden);
  const DeviceValues dweight = Fp32OnDevice(Floats(weight_.size(), 2.0f));
  ASSERT_TRUE(CrossEntropyForwardBackward(*context_, Head(), on_x_.address(), none.As<int32_t>(),
                                          kTokens, kScale, sum_.As<double>(), dx.address(),
                                          dweight.floats())
                  .ok());
  EXPECT_EQ(Sum(), 0.0);
  EXPECT_EQ(ToHost(dx), Floats(x_.size(), 0.0f));
  EXPECT_EQ(ToHost(dweight), Floats(weight_.size(), 2.0f));
}

TEST_P(LossOnGpu, NaNIsNotHidden) {
  Prepare(50);
  x_[3] = NAN;
  on_x_ = OnDevice(x_);
  ASSERT_TRUE(CrossEntropyForward(*context_, Head(), on_x_.address(), on_targets_.As<int32_t>(),
                                  kTokens, sum_.As<double>())
                  .ok());
  EXPECT_TRUE(std::isnan(Sum()));
}

TEST_P(LossOnGpu, LogitsAreTheCpus) {
  Prepare(37);
  Floats expected(static_cast<size_t>(3 * vocab_));
  cpu::Logits(cpu_, CpuHead(), x_.data(), 3, expected.data());
  const DeviceValues logits = Unset(3 * vocab_, DType::kF32);
  ASSERT_TRUE(Logits(*context_, Head(), on_x_.address(), 3, logits.floats()).ok());
  ExpectClose(logits, expected);
}

FOREBAY_TEST_TYPES(LossOnGpu);

TEST(LossSizes, ChunksAreEqualAndUnderTheLimit) {
  EXPECT_EQ(LossChunkTokens(1000, 100, 1 << 20), 1000);
  EXPECT_EQ(LossChunkTokens(1000, 100, 104 * 400), 334);
  EXPECT_EQ(LossChunkTokens(1000, 100, 10), 1);
  EXPECT_EQ(LossChunkTokens(0, 100, 10), 1);
}

// As much as the operators take, and no more than one alignment above it.
TEST(ScratchBytes, IsThatOfTheLargestOperator) {
  // The loss: 2,000 tokens of a vocabulary whose chunk is all of them.
  EXPECT_EQ(ScratchBytes(DType::kBF16, 2000, 64, 256, 32000, 4, 16),
            AlignedScratch(2000 * 4) + 2000 * 32000 * (4 + 2));
  EXPECT_EQ(ScratchBytes(DType::kF32, 2000, 64, 256, 32000, 4, 16),
            AlignedScratch(2000 * 4) + 2000 * 32000 * 4);
  // Sums over rows, where the vocabulary is small.
  EXPECT_EQ(ScratchBytes(DType::kBF16, 8, 64, 256, 10, 4, 128), 2 * 128 * 512 * 4);
}

}  // namespace
}  // namespace forebay::cuda
