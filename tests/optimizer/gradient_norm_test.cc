#include "forebay/optimizer/kernels/gradient_norm.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/tests/optimizer/simd_targets.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

std::vector<float> MakeGradient(int64_t num_elems) {
  const CounterRng rng(/*seed=*/21);
  std::vector<float> gradient(num_elems);
  for (int64_t i = 0; i < num_elems; ++i) {
    gradient[i] =
        static_cast<float>(std::pow(10.0, static_cast<double>(i % 12) - 10) * rng.Normal(i));
  }
  return gradient;
}

TEST(GradientNorm, EveryInstructionSetRoundsAndSumsToTheBitsOfTheReference) {
  for (const int64_t num_elems : {int64_t{0}, int64_t{16}, int64_t{48}, kNormBlockElems}) {
    const std::vector<float> gradient = MakeGradient(num_elems);
    std::vector<Bf16> expected(num_elems);
    const double expected_sum = RoundAndSumSquaresRef(gradient.data(), num_elems, expected.data());
    ForEachSimdTarget([&] {
      std::vector<Bf16> rounded(num_elems);
      const double sum = RoundAndSumSquares(gradient.data(), num_elems, rounded.data());
      EXPECT_EQ(std::bit_cast<uint64_t>(sum), std::bit_cast<uint64_t>(expected_sum));
      EXPECT_EQ(rounded, expected);
    });
  }
}

TEST(GradientNorm, EveryInstructionSetCopiesAndSumsToTheBitsOfTheReference) {
  const std::vector<float> gradient = MakeGradient(kNormBlockElems);
  std::vector<float> expected(gradient.size());
  const double expected_sum =
      CopyAndSumSquaresRef(gradient.data(), kNormBlockElems, expected.data());
  EXPECT_EQ(expected, gradient);
  ForEachSimdTarget([&] {
    std::vector<float> copied(gradient.size());
    const double sum = CopyAndSumSquares(gradient.data(), kNormBlockElems, copied.data());
    EXPECT_EQ(std::bit_cast<uint64_t>(sum), std::bit_cast<uint64_t>(expected_sum));
    EXPECT_EQ(copied, gradient);
  });
}

TEST(GradientNorm, RoundsEveryBitPatternAsTheScalarConversionDoes) {
  // A stride through all 2^32 patterns that meets every exponent, ties, infinities and NaNs.
  constexpr uint32_t kStride = 4093;
  std::vector<float> gradient;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStride) {
    gradient.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const uint32_t bits : {0x3f808000u, 0x3f818000u, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u,
                              0x7f800001u, 0x7fffffffu, 0xff800000u, 0xffc00001u, 0x80000001u}) {
    gradient.push_back(std::bit_cast<float>(bits));
  }
  gradient.resize((gradient.size() + 15) / 16 * 16);
  ForEachSimdTarget([&] {
    std::vector<Bf16> rounded(gradient.size());
    RoundAndSumSquares(gradient.data(), static_cast<int64_t>(gradient.size()), rounded.data());
    for (size_t i = 0; i < gradient.size(); ++i)
      ASSERT_EQ(rounded[i], FloatToBf16(gradient[i])) << i;
  });
}

TEST(GradientNorm, TheSumIsThatOfTheRoundedValues) {
  std::vector<float> gradient(16, 1.0f + 0x1p-9f);  // a tie: rounds to 1
  std::vector<Bf16> rounded(16);
  EXPECT_EQ(RoundAndSumSquares(gradient.data(), 16, rounded.data()), 16.0);
  std::vector<float> copied(16);
  EXPECT_EQ(CopyAndSumSquares(gradient.data(), 16, copied.data()),
            16.0 * (1.0 + 0x1p-9) * (1.0 + 0x1p-9));
}

TEST(GradientNorm, TheSumIsFiniteExactlyWhenAllRoundedValuesAre) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> gradient(kNormBlockElems, Bf16ToFloat(0x7f7f));  // the largest bf16
  std::vector<Bf16> rounded(gradient.size());
  EXPECT_TRUE(std::isfinite(RoundAndSumSquares(gradient.data(), kNormBlockElems, rounded.data())));
  // The last one is finite in fp32 and infinite in bf16.
  for (const float bad :
       {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::max()}) {
    gradient.back() = bad;
    EXPECT_FALSE(
        std::isfinite(RoundAndSumSquares(gradient.data(), kNormBlockElems, rounded.data())));
  }
}

}  // namespace
}  // namespace forebay
