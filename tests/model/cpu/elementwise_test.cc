#include <gtest/gtest.h>

#include <cmath>

#include "reference.h"

namespace forebay::cpu {
namespace {

// Values of every magnitude that activations take, and the ends where exp overflows.
Floats Sweep(int64_t count) {
  Floats x = RandomFloats(count, 1, 4.0);
  const Floats ends = {0.0f, -0.0f, 20.0f, -20.0f, 87.0f, -87.0f, 100.0f, -100.0f, 1e4f, -1e4f};
  for (size_t i = 0; i < ends.size() && i < x.size(); ++i) x[i] = ends[i];
  return x;
}

double Silu(double x) {
  return x / (1 + std::exp(-x));
}
double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double Slope(double (*f)(double), double x) {
  return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

// |actual - expected| in units of the expected value's last place, with `floor` as the smallest
// magnitude that counts.
double ErrorInUlps(float actual, double expected, double floor = 1e-25) {
  const double magnitude = std::max(std::abs(expected), floor);
  return std::abs(actual - expected) / (magnitude * 0x1p-23);
}

class Elementwise : public testing::TestWithParam<int64_t> {
 protected:
  const int64_t count_ = GetParam();
  const Floats a_ = Sweep(count_);
  const Floats b_ = RandomFloats(count_, 2);
  const Floats dout_ = RandomFloats(count_, 3);
  Context context_{2, Precision::kFp32};
};

TEST_P(Elementwise, SwiGluIsWithinFourUlps) {
  Floats out(a_.size(), NAN);
  SwiGluForward(context_, a_.data(), b_.data(), count_, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_LT(ErrorInUlps(out[i], Silu(a_[i]) * b_[i]), 4) << a_[i];
  }
}

TEST_P(Elementwise, SwiGluGradientsEqualFiniteDifferences) {
  Floats dgate(a_.size(), NAN), dup(a_.size(), NAN);
  SwiGluBackward(context_, a_.data(), b_.data(), dout_.data(), count_, dgate.data(), dup.data());
  for (size_t i = 0; i < dgate.size(); ++i) {
    EXPECT_LT(ErrorInUlps(dup[i], dout_[i] * Silu(a_[i])), 4) << a_[i];
    const double upstream = double{dout_[i]} * b_[i];
    EXPECT_NEAR(dgate[i], upstream * Slope(Silu, a_[i]), 1e-6 * (1 + std::abs(upstream))) << a_[i];
  }
}

TEST_P(Elementwise, SwiGluGradientsMayOverwriteTheirInputs) {
  Floats dgate(a_.size(), NAN), dup(a_.size(), NAN);
  SwiGluBackward(context_, a_.data(), b_.data(), dout_.data(), count_, dgate.data(), dup.data());
  Floats gate = a_, up = b_;
  SwiGluBackward(context_, gate.data(), up.data(), dout_.data(), count_, gate.data(), up.data());
  EXPECT_TRUE(SameBits(gate, dgate));
  EXPECT_TRUE(SameBits(up, dup));
}

TEST_P(Elementwise, GeluTanhEqualsFloat64) {
  Floats out(a_.size(), NAN);
  GeluTanhForward(context_, a_.data(), count_, out.data());
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_NEAR(out[i], Gelu(a_[i]), 1e-6 * (1 + std::abs(a_[i])));
}

TEST_P(Elementwise, GeluTanhGradientEqualsFiniteDifferences) {
  Floats dx(a_.size(), NAN);
  GeluTanhBackward(context_, a_.data(), dout_.data(), count_, dx.data());
  for (size_t i = 0; i < dx.size(); ++i) {
    EXPECT_NEAR(dx[i], dout_[i] * Slope(Gelu, a_[i]), 2e-6 * (1 + std::abs(dout_[i]))) << a_[i];
  }
}

TEST_P(Elementwise, AddIsExactlyRounded) {
  Floats y = b_;
  Add(context_, a_.data(), count_, y.data());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], a_[i] + b_[i]);
}

TEST_P(Elementwise, IsTheSameBitsForAllThreadCounts) {
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    Floats all;
    Floats one(a_.size()), two(a_.size());
    const auto append = [&](const Floats& x) { all.insert(all.end(), x.begin(), x.end()); };
    SwiGluForward(context, a_.data(), b_.data(), count_, one.data());
    append(one);
    SwiGluBackward(context, a_.data(), b_.data(), dout_.data(), count_, one.data(), two.data());
    append(one);
    append(two);
    GeluTanhForward(context, a_.data(), count_, one.data());
    append(one);
    GeluTanhBackward(context, a_.data(), dout_.data(), count_, one.data());
    append(one);
    return all;
  }));
}

INSTANTIATE_TEST_SUITE_P(Counts, Elementwise, testing::Values(1, 7, 64, 1003, 40000));

TEST(SwiGluForward, NaNIsNotHidden) {
  Context context(1, Precision::kFp32);
  const Floats gate(16, NAN), up(16, 1.0f);
  Floats out(16, 0.0f);
  SwiGluForward(context, gate.data(), up.data(), 16, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

struct RopeCase {
  int64_t tokens, heads, head_dim;
};
class RopeTest : public testing::TestWithParam<RopeCase> {
 protected:
  RopeTest() {
    const int64_t half = GetParam().head_dim / 2;
    for (int64_t position = 0; position < 64; ++position) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(1e4, -double(i) / double(half));
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    for (int64_t token = 0; token < GetParam().tokens; ++token) {
      positions_.push_back(static_cast<int32_t>(token * 7 % 64));
    }
  }
  RopeTable table() const { return {cos_, sin_, GetParam().head_dim}; }
  Floats cos_, sin_;
  std::vector<int32_t> positions_;
  const Floats x_ = RandomFloats(GetParam().tokens * GetParam().heads * GetParam().head_dim, 1);
};

TEST_P(RopeTest, RotatesPairsByTheTokensPosition) {
  const auto [tokens, heads, head_dim] = GetParam();
  Context context(2, Precision::kFp32);
  Floats x = x_;
  Rope(context, table(), positions_, heads, x.data(), false);
  Doubles expected(x.size());
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const int64_t position = positions_[static_cast<size_t>(row / heads)];
    for (int64_t i = 0; i < half; ++i) {
      const size_t low = static_cast<size_t>(row * head_dim + i);
      const size_t high = low + static_cast<size_t>(half);
      const double c = cos_[static_cast<size_t>(position * half + i)];
      const double s = sin_[static_cast<size_t>(position * half + i)];
      expected[low] = x_[low] * c - x_[high] * s;
      expected[high] = x_[high] * c + x_[low] * s;
    }
  }
  EXPECT_LT(RelativeError(x, expected), 2e-7);
}

TEST_P(RopeTest, TheInverseUndoesIt) {
  Context context(2, Precision::kFp32);
  Floats x = x_;
  Rope(context, table(), positions_, GetParam().heads, x.data(), false);
  Rope(context, table(), positions_, GetParam().heads, x.data(), true);
  EXPECT_LT(RelativeError(x, ToDouble(x_)), 3e-7);
}

TEST_P(RopeTest, IsTheSameBitsForAllThreadCounts) {
  EXPECT_TRUE(SameBitsForAllThreadCounts([&](Context& context) {
    Floats x = x_;
    Rope(context, table(), positions_, GetParam().heads, x.data(), false);
    return x;
  }));
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         testing::Values(RopeCase{1, 1, 2}, RopeCase{100, 9, 64},
                                         RopeCase{33, 2, 80}, RopeCase{5, 3, 10}));

TEST(EmbeddingForward, CopiesAndAddsRowsOfEitherDtype) {
  Context context(2, Precision::kFp32);
  const int64_t hidden = 19;
  const Floats table = Widened(ToBf16(RandomFloats(11 * hidden, 1)));
  const std::vector<Bf16> narrow = ToBf16(table);
  const std::vector<int32_t> tokens = {10, 0, 3, 3};
  Floats expected;
  for (const int32_t token : tokens) {
    expected.insert(expected.end(), table.begin() + token * hidden,
                    table.begin() + (token + 1) * hidden);
  }
  Floats out(expected.size(), NAN);
  EmbeddingForward(context, table.data(), DType::kF32, tokens, hidden, out.data(), false);
  EXPECT_TRUE(SameBits(out, expected));
  out.assign(out.size(), NAN);
  EmbeddingForward(context, narrow.data(), DType::kBF16, tokens, hidden, out.data(), false);
  EXPECT_TRUE(SameBits(out, expected));
  EmbeddingForward(context, narrow.data(), DType::kBF16, tokens, hidden, out.data(), true);
  for (float& value : expected) value *= 2;
  EXPECT_TRUE(SameBits(out, expected));
}

TEST(EmbeddingBackward, AddsRowsInTheOrderOfTokens) {
  const int64_t hidden = 150;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back(i * i % 7);
  const Floats dout = RandomFloats(200 * hidden, 1);
  const Floats before = RandomFloats(7 * hidden, 2);
  Floats expected = before;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (int64_t j = 0; j < hidden; ++j) {
      expected[static_cast<size_t>(tokens[i] * hidden + j)] +=
          dout[i * static_cast<size_t>(hidden) + static_cast<size_t>(j)];
    }
  }
  for (const int num_threads : {1, 2, 3}) {
    Context context(num_threads, Precision::kFp32);
    Floats dtable = before;
    EmbeddingBackward(context, tokens, hidden, dout.data(), dtable.data());
    EXPECT_TRUE(SameBits(dtable, expected));
    Floats by_rows = before;
    for (const auto& [first, count] : {std::pair(0, 3), std::pair(3, 4)}) {
      EmbeddingBackwardOfRows(context, tokens, hidden, dout.data(), first, count,
                              by_rows.data() + first * hidden);
    }
    EXPECT_TRUE(SameBits(by_rows, expected));
  }
}

}  // namespace
}  // namespace forebay::cpu
