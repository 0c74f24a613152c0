#include <gtest/gtest.h>

#include <cmath>

#include "reference.h"

namespace forebay::cpu {
namespace {

struct LinearCase {
  std::string name;
  int64_t tokens, in, out;
  bool in_out = false;
  bool bias = false;
  int64_t padding = 0;  // elements between rows of the weights that belong to others
};
void PrintTo(const LinearCase& c, std::ostream* out) {
  *out << c.name;
}

class LinearTest : public testing::TestWithParam<LinearCase> {
 protected:
  LinearTest() {
    const LinearCase& c = GetParam();
    columns_ = c.in_out ? c.out : c.in;
    rows_ = c.in_out ? c.in : c.out;
    stride_ = columns_ + c.padding;
    weight_ = ToBf16(RandomFloats(rows_ * stride_, 1, 0.5));
    bias_ = ToBf16(RandomFloats(c.out, 2));
    wide_weight_ = Widened(weight_);
    wide_bias_ = Widened(bias_);
    x_ = RandomFloats(c.tokens * c.in, 3);
    dy_ = RandomFloats(c.tokens * c.out, 4);
  }
  Linear linear(DType dtype) const {
    const bool narrow = dtype == DType::kBF16;
    const LinearCase& c = GetParam();
    const void* bias = narrow ? static_cast<const void*>(bias_.data()) : wide_bias_.data();
    return {.dtype = dtype,
            .weight = narrow ? static_cast<const void*>(weight_.data()) : wide_weight_.data(),
            .bias = c.bias ? bias : nullptr,
            .in = c.in,
            .out = c.out,
            .in_out = c.in_out,
            .row_stride = c.padding == 0 ? 0 : stride_};
  }
  // The weights without padding, in float64.
  Doubles DenseWeights() const {
    Doubles dense;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i < columns_; ++i) {
        dense.push_back(wide_weight_[static_cast<size_t>(row * stride_ + i)]);
      }
    }
    return dense;
  }
  Doubles ExpectedForward() const {
    const LinearCase& c = GetParam();
    Doubles y =
        ReferenceProduct(ToDouble(x_), DenseWeights(), c.tokens, c.out, c.in, false, !c.in_out);
    for (size_t i = 0; c.bias && i < y.size(); ++i) y[i] += wide_bias_[i % bias_.size()];
    return y;
  }
  Floats Forward(Context& context, DType dtype) const {
    Floats y(dy_.size(), NAN);
    LinearForward(context, linear(dtype), x_.data(), GetParam().tokens, y.data());
    return y;
  }
  Floats BackwardInput(Context& context, DType dtype) const {
    Floats dx(x_.size(), NAN);
    LinearBackwardInput(context, linear(dtype), dy_.data(), GetParam().tokens, dx.data(), false);
    return dx;
  }

  int64_t rows_, columns_, stride_;
  std::vector<Bf16> weight_, bias_;
  Floats wide_weight_, wide_bias_, x_, dy_;
};

// Inputs of a native product are rounded to bf16: 2^-9 each.
double Tolerance(const Context& context) {
  return context.native_bf16() ? 1e-2 : 3e-6;
}

TEST_P(LinearTest, ForwardEqualsFloat64) {
  Context context(2, Precision::kFp32);
  EXPECT_LT(RelativeError(Forward(context, DType::kF32), ExpectedForward()), 3e-6);
}

TEST_P(LinearTest, ForwardOfBf16WeightsEqualsFloat64) {
  Context context(2, Precision::kBf16);
  EXPECT_LT(RelativeError(Forward(context, DType::kBF16), ExpectedForward()), Tolerance(context));
}

TEST_P(LinearTest, ForwardAddsToWhatIsThere) {
  Context context(2, Precision::kFp32);
  Floats y = RandomFloats(static_cast<int64_t>(dy_.size()), 5);
  Doubles expected = ExpectedForward();
  for (size_t i = 0; i < y.size(); ++i) expected[i] += y[i];
  LinearForward(context, linear(DType::kBF16), x_.data(), GetParam().tokens, y.data(), true);
  EXPECT_LT(RelativeError(y, expected), 3e-6);
}

TEST_P(LinearTest, BackwardInputEqualsFloat64) {
  const LinearCase& c = GetParam();
  const Doubles expected =
      ReferenceProduct(ToDouble(dy_), DenseWeights(), c.tokens, c.in, c.out, false, c.in_out);
  Context fp32(2, Precision::kFp32);
  EXPECT_LT(RelativeError(BackwardInput(fp32, DType::kF32), expected), 3e-6);
  Context bf16(2, Precision::kBf16);
  EXPECT_LT(RelativeError(BackwardInput(bf16, DType::kBF16), expected), Tolerance(bf16));
}

TEST_P(LinearTest, BackwardInputAddsToWhatIsThere) {
  const LinearCase& c = GetParam();
  Context context(2, Precision::kFp32);
  Floats dx = RandomFloats(c.tokens * c.in, 5);
  Doubles expected =
      ReferenceProduct(ToDouble(dy_), DenseWeights(), c.tokens, c.in, c.out, false, c.in_out);
  for (size_t i = 0; i < dx.size(); ++i) expected[i] += dx[i];
  LinearBackwardInput(context, linear(DType::kBF16), dy_.data(), c.tokens, dx.data(), true);
  EXPECT_LT(RelativeError(dx, expected), 3e-6);
}

TEST_P(LinearTest, BackwardWeightAddsItsGradientAndNothingBetweenRows) {
  const LinearCase& c = GetParam();
  const Floats before = RandomFloats(rows_ * stride_, 6);
  const Floats dbias_before = RandomFloats(c.out, 7);
  const Doubles x = ToDouble(x_), dy = ToDouble(dy_);
  const Doubles product = c.in_out ? ReferenceProduct(x, dy, c.in, c.out, c.tokens, true, false)
                                   : ReferenceProduct(dy, x, c.out, c.in, c.tokens, true, false);
  Doubles expected = ToDouble(before), dbias_expected = ToDouble(dbias_before);
  for (size_t i = 0; i < product.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns_);
    expected[row * static_cast<size_t>(stride_) + i % static_cast<size_t>(columns_)] += product[i];
  }
  for (size_t i = 0; i < dy.size(); ++i) dbias_expected[i % dbias_expected.size()] += dy[i];
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    Context context(2, precision);
    Floats dweight = before, dbias = dbias_before;
    LinearBackwardWeight(context, linear(DType::kBF16), x_.data(), dy_.data(), c.tokens,
                         dweight.data(), dbias.data());
    EXPECT_LT(RelativeError(dweight, expected), Tolerance(context));
    EXPECT_LT(RelativeError(dbias, dbias_expected), 3e-6);
    for (size_t i = 0; i < before.size(); ++i) {
      if (i % static_cast<size_t>(stride_) >= static_cast<size_t>(columns_)) {
        ASSERT_EQ(dweight[i], before[i]) << "element " << i << " belongs to another tensor";
      }
    }
  }
}

TEST_P(LinearTest, IsTheSameBitsForAllThreadCounts) {
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    Floats all = Forward(context, DType::kBF16);
    const Floats dx = BackwardInput(context, DType::kBF16);
    Floats dweight(weight_.size(), 0.0f), dbias(bias_.size(), 0.0f);
    LinearBackwardWeight(context, linear(DType::kBF16), x_.data(), dy_.data(), GetParam().tokens,
                         dweight.data(), dbias.data());
    for (const Floats* part :
         {&dx, static_cast<const Floats*>(&dweight), static_cast<const Floats*>(&dbias)}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }));
}

class NativeBf16Test : public LinearTest {};

TEST_P(NativeBf16Test, ProductsAreThoseOfRoundedInputs) {
  Context context(2, Precision::kBf16);
  if (!context.native_bf16()) GTEST_SKIP() << "this CPU has no bf16 products (AVX-512 BF16 or AMX)";
  const LinearCase& c = GetParam();
  const Doubles x = ToDouble(Widened(ToBf16(x_))), dy = ToDouble(Widened(ToBf16(dy_)));
  Doubles y = ReferenceProduct(x, DenseWeights(), c.tokens, c.out, c.in, false, !c.in_out);
  for (size_t i = 0; c.bias && i < y.size(); ++i) y[i] += wide_bias_[i % bias_.size()];
  EXPECT_LT(RelativeError(Forward(context, DType::kBF16), y), 1e-5);
  EXPECT_LT(
      RelativeError(BackwardInput(context, DType::kBF16),
                    ReferenceProduct(dy, DenseWeights(), c.tokens, c.in, c.out, false, c.in_out)),
      1e-5);
}

// Under Precision::kFp16, from weights in fp16.
class Fp16Test : public LinearTest {
 protected:
  Fp16Test() : weight16_(ToFp16(wide_weight_)), bias16_(ToFp16(wide_bias_)) {
    wide_weight_ = Fp16Widened(weight16_);
    wide_bias_ = Fp16Widened(bias16_);
  }
  Linear linear() const {
    Linear result = LinearTest::linear(DType::kBF16);
    result.dtype = DType::kF16;
    result.weight = weight16_.data();
    if (result.bias != nullptr) result.bias = bias16_.data();
    return result;
  }
  static std::vector<Fp16> ToFp16(const Floats& values) {
    std::vector<Fp16> result;
    for (const float value : values) result.push_back(FloatToFp16(value));
    return result;
  }
  static Floats Fp16Widened(const std::vector<Fp16>& values) {
    Floats result;
    for (const Fp16 value : values) result.push_back(Fp16ToFloat(value));
    return result;
  }
  static Doubles Rounded(const Floats& values) { return ToDouble(Fp16Widened(ToFp16(values))); }
  // `actual` is `exact` rounded to fp16, but for what the fp32 sums leave open near a tie.
  static void ExpectRounded(const Floats& actual, const Doubles& exact) {
    double largest = 0;
    for (const double value : exact) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(actual[i], Fp16ToFloat(FloatToFp16(actual[i]))) << i;
      const double half_ulp = std::max(std::abs(exact[i]), 0x1p-14) * 0x1p-11;
      ASSERT_NEAR(actual[i], exact[i], half_ulp + 3e-6 * largest) << i;
    }
  }

  const std::vector<Fp16> weight16_, bias16_;
};

TEST_P(Fp16Test, OperandsAndResultsAreRounded) {
  const LinearCase& c = GetParam();
  Context context(2, Precision::kFp16);
  Doubles y =
      ReferenceProduct(Rounded(x_), DenseWeights(), c.tokens, c.out, c.in, false, !c.in_out);
  for (size_t i = 0; c.bias && i < y.size(); ++i) y[i] += wide_bias_[i % bias_.size()];
  Floats actual(dy_.size(), NAN);
  LinearForward(context, linear(), x_.data(), c.tokens, actual.data());
  ExpectRounded(actual, y);
  Floats dx(x_.size(), NAN);
  LinearBackwardInput(context, linear(), dy_.data(), c.tokens, dx.data(), false);
  ExpectRounded(
      dx, ReferenceProduct(Rounded(dy_), DenseWeights(), c.tokens, c.in, c.out, false, c.in_out));
}

TEST_P(Fp16Test, WhatIsAddedIsRoundedBefore) {
  Context context(2, Precision::kFp16);
  Floats product(dy_.size()), sum = RandomFloats(static_cast<int64_t>(dy_.size()), 5);
  const Floats before = sum;
  LinearForward(context, linear(), x_.data(), GetParam().tokens, product.data());
  LinearForward(context, linear(), x_.data(), GetParam().tokens, sum.data(), true);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], before[i] + product[i]) << i;
}

TEST_P(Fp16Test, GradientsOfWeightsAreSumsOfRoundedOperands) {
  const LinearCase& c = GetParam();
  Context context(2, Precision::kFp16);
  const Doubles x = Rounded(x_), dy = Rounded(dy_);
  const Doubles product = c.in_out ? ReferenceProduct(x, dy, c.in, c.out, c.tokens, true, false)
                                   : ReferenceProduct(dy, x, c.out, c.in, c.tokens, true, false);
  Floats padded(weight_.size(), 0.0f), dweight;
  LinearBackwardWeight(context, linear(), x_.data(), dy_.data(), c.tokens, padded.data(), nullptr);
  for (int64_t i = 0; i < rows_ * columns_; ++i) {
    dweight.push_back(padded[static_cast<size_t>(i / columns_ * stride_ + i % columns_)]);
  }
  EXPECT_LT(RelativeError(dweight, product), 3e-6);
}

TEST_P(Fp16Test, WhatIsBeyondFp16IsInfinite) {
  const LinearCase& c = GetParam();
  Context context(2, Precision::kFp16);
  Floats x = x_;
  x.front() = 65520.0f;
  Floats y(dy_.size());
  LinearForward(context, linear(), x.data(), c.tokens, y.data());
  EXPECT_FALSE(std::isfinite(y.front()));
  x.front() = 60000.0f;  // of fp16, but not the product
  std::vector<Fp16> threes(weight16_.size(), FloatToFp16(3.0f));
  Linear large = linear();
  large.weight = threes.data();
  LinearForward(context, large, x.data(), c.tokens, y.data());
  EXPECT_EQ(y.front(), INFINITY);
}

TEST_P(Fp16Test, IsTheSameBitsForAllThreadCounts) {
  for (const int threads : {1, 2, 3}) {
    Context one(1, Precision::kFp16), several(threads, Precision::kFp16);
    Floats expected(dy_.size()), actual(dy_.size());
    LinearForward(one, linear(), x_.data(), GetParam().tokens, expected.data());
    LinearForward(several, linear(), x_.data(), GetParam().tokens, actual.data());
    EXPECT_TRUE(SameBits(actual, expected));
  }
}

// So few that they are multiplied in fp32.
const LinearCase kFewRows[] = {{"OneRow", 1, 96, 70},
                               {"TwoRowsWithBias", 2, 33, 100, false, true},
                               {"ThreeRowsInOut", 3, 50, 300, true, true},
                               {"FourRowsOfASlice", 4, 65, 64, true, true, 128}};
const LinearCase kMoreRows[] = {{"FewRows", 5, 40, 24},
                                {"ManyRows", 1030, 72, 200},
                                {"DeepSum", 40, 3000, 130, false, true},
                                {"DeepSumInOut", 40, 3000, 130, true, true},
                                {"InOutWithBias", 77, 100, 300, true, true},
                                {"SliceOfAFusedTensor", 50, 48, 48, true, true, 96},
                                {"PaddedRows", 50, 60, 31, false, true, 4},
                                {"OneElement", 9, 1, 1, false, true}};

std::string NameOfCase(const testing::TestParamInfo<LinearCase>& test) {
  return test.param.name;
}
INSTANTIATE_TEST_SUITE_P(FewRows, LinearTest, testing::ValuesIn(kFewRows), NameOfCase);
INSTANTIATE_TEST_SUITE_P(MoreRows, LinearTest, testing::ValuesIn(kMoreRows), NameOfCase);
INSTANTIATE_TEST_SUITE_P(FewRows, Fp16Test, testing::ValuesIn(kFewRows), NameOfCase);
INSTANTIATE_TEST_SUITE_P(MoreRows, Fp16Test, testing::ValuesIn(kMoreRows), NameOfCase);
INSTANTIATE_TEST_SUITE_P(MoreRows, NativeBf16Test, testing::ValuesIn(kMoreRows), NameOfCase);

class GemmTest : public testing::TestWithParam<std::tuple<bool, bool, bool>> {};

TEST_P(GemmTest, EqualsFloat64ForAllThreadCounts) {
  const auto [transpose_a, transpose_b, accumulate] = GetParam();
  const int64_t m = 130, n = 210, k = 90;
  const Floats a = RandomFloats(m * k, 1), b = RandomFloats(n * k, 2),
               before = RandomFloats(m * n, 3);
  Doubles expected = ReferenceProduct(ToDouble(a), ToDouble(b), m, n, k, transpose_a, transpose_b);
  for (size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
  const auto run = [&, ta = transpose_a, tb = transpose_b, add = accumulate](Context& context) {
    Floats c = before;
    Gemm(context,
         {.m = m,
          .n = n,
          .k = k,
          .transpose_a = ta,
          .transpose_b = tb,
          .accumulate = add,
          .lda = ta ? m : k,
          .ldb = tb ? k : n,
          .ldc = n},
         a.data(), b.data(), c.data());
    return c;
  };
  Context context(2, Precision::kFp32);
  EXPECT_LT(RelativeError(run(context), expected), 2e-6);
  EXPECT_TRUE(SameBitsForAllThreadCounts(run));
}

INSTANTIATE_TEST_SUITE_P(Forms, GemmTest,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Bool()));

TEST(LinearForward, OfNoRowsTouchesNothing) {
  const Floats weight = RandomFloats(16 * 8, 1);
  Context context(2, Precision::kFp32);
  float y = 7;
  LinearForward(context, {.dtype = DType::kF32, .weight = weight.data(), .in = 8, .out = 16},
                nullptr, 0, &y);
  EXPECT_EQ(y, 7);
}

TEST(Logits, EqualTheOutputProjection) {
  const int64_t vocab = 333, hidden = 64, rows = 2;
  const Floats weight = RandomFloats(vocab * hidden, 1), x = RandomFloats(rows * hidden, 2);
  Context context(2, Precision::kFp32);
  Floats logits(static_cast<size_t>(rows * vocab), NAN);
  Logits(context, {.dtype = DType::kF32, .weight = weight.data(), .in = hidden, .out = vocab},
         x.data(), rows, logits.data());
  const Doubles expected =
      ReferenceProduct(ToDouble(x), ToDouble(weight), rows, vocab, hidden, false, true);
  EXPECT_LT(RelativeError(logits, expected), 2e-6);
}

}  // namespace
}  // namespace forebay::cpu
