#include "forebay/optimizer/kernels/gradient_norm.h"

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/hash.h"
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

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

uint32_t BitsAt(const std::vector<std::byte>& rounded, DType dtype, size_t index) {
  if (dtype == DType::kF32) return reinterpret_cast<const uint32_t*>(rounded.data())[index];
  return reinterpret_cast<const uint16_t*>(rounded.data())[index];
}
uint32_t ExpectedBits(float value, DType dtype) {
  return dtype == DType::kF32    ? std::bit_cast<uint32_t>(value)
         : dtype == DType::kBF16 ? FloatToBf16(value)
                                 : FloatToFp16(value);
}

struct Rounded {
  explicit Rounded(const std::vector<float>& gradient, DType dtype)
      : bytes(gradient.size() * static_cast<size_t>(SizeOf(dtype))),
        sum(RoundAndSumSquares(gradient.data(), static_cast<int64_t>(gradient.size()), dtype,
                               bytes.data())) {}
  std::vector<std::byte> bytes;
  double sum;
};

TEST(GradientNorm, EveryInstructionSetRoundsAndSumsToTheBitsOfTheReference) {
  for (const DType dtype : kDTypes) {
    for (const int64_t num_elems : {int64_t{0}, int64_t{16}, int64_t{48}, kNormBlockElems}) {
      const std::vector<float> gradient = MakeGradient(num_elems);
      std::vector<std::byte> expected(gradient.size() * static_cast<size_t>(SizeOf(dtype)));
      const double expected_sum =
          RoundAndSumSquaresRef(gradient.data(), num_elems, dtype, expected.data());
      ForEachSimdTarget([&] {
        const Rounded rounded(gradient, dtype);
        EXPECT_EQ(std::bit_cast<uint64_t>(rounded.sum), std::bit_cast<uint64_t>(expected_sum));
        EXPECT_EQ(rounded.bytes, expected);
        std::vector<std::byte> copied(expected.size());
        const double sum = CopyAndSumSquares(expected.data(), num_elems, dtype, copied.data());
        EXPECT_EQ(std::bit_cast<uint64_t>(sum), std::bit_cast<uint64_t>(expected_sum));
        EXPECT_EQ(copied, expected);
      });
    }
  }
}

// On every CPU. When the order of the sum changes on purpose, paste what this prints.
TEST(GradientNorm, IsTheStoredOne) {
  const CounterRng rng(/*seed=*/21);
  std::vector<float> gradient(kNormBlockElems);
  for (int64_t i = 0; i < kNormBlockElems; ++i) {
    // From -1 to 1, times powers of two down to 2^-40; without functions of the C library.
    const float uniform = static_cast<float>(static_cast<int32_t>(rng.Words(i)[0])) * 0x1p-31f;
    gradient[i] = uniform * std::bit_cast<float>(static_cast<uint32_t>(127 - i % 41) << 23);
  }
  const auto expect = [&](DType dtype, uint64_t bits_of_sum, const std::string& digest) {
    const Rounded rounded(gradient, dtype);
    Xxh3_128 hash;
    hash.Update(std::span<const std::byte>(rounded.bytes));
    EXPECT_EQ(std::bit_cast<uint64_t>(rounded.sum), bits_of_sum);
    EXPECT_EQ(hash.Hex(), digest);
  };
  expect(DType::kBF16, 4627084321926439626, "67907318dea597b5f76ab74ac9e99f5f");
  expect(DType::kF16, 4627084509525428582, "e2434f847fd354de186aa77665f5f3c3");
  expect(DType::kF32, 4627084821998456928, "aceb6af2cf9dd8a777acddabc5dde7be");
}

TEST(GradientNorm, RoundsEveryBitPatternAsTheScalarConversionDoes) {
  // A stride through all 2^32 patterns that meets every exponent, ties, infinities and NaNs.
  constexpr uint32_t kStride = 4093;
  std::vector<float> gradient;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStride) {
    gradient.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const uint32_t bits :
       {0x3f808000u, 0x3f818000u, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fffffffu,
        0xff800000u, 0xffc00001u, 0x80000001u,
        // Of fp16: the largest, what is rounded to it and to infinity, ties, the smallest.
        0x477fe000u, 0x477fefffu, 0x477ff000u, 0x3f801000u, 0x3f803000u, 0x38800000u, 0x387fffffu,
        0x33800000u, 0x33000000u, 0x33000001u, 0xb3000000u}) {
    gradient.push_back(std::bit_cast<float>(bits));
  }
  gradient.resize((gradient.size() + 15) / 16 * 16);
  for (const DType dtype : kDTypes) {
    ForEachSimdTarget([&] {
      const Rounded rounded(gradient, dtype);
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_EQ(BitsAt(rounded.bytes, dtype, i), ExpectedBits(gradient[i], dtype)) << i;
      }
    });
  }
}

TEST(GradientNorm, TheSumIsThatOfTheRoundedValues) {
  const std::vector<float> near_one(16, 1.0f + 0x1p-11f);
  EXPECT_EQ(Rounded(near_one, DType::kBF16).sum, 16.0);
  EXPECT_EQ(Rounded(near_one, DType::kF16).sum, 16.0);  // a tie
  EXPECT_EQ(Rounded(near_one, DType::kF32).sum, 16.0 * (1.0 + 0x1p-11) * (1.0 + 0x1p-11));
}

TEST(GradientNorm, TheSumIsFiniteExactlyWhenAllRoundedValuesAre) {
  using Limits = std::numeric_limits<float>;
  const auto sum_with_last = [](float all, float last, DType dtype) {
    std::vector<float> gradient(kNormBlockElems, all);
    gradient.back() = last;
    return Rounded(gradient, dtype).sum;
  };
  const float largest_bf16 = Bf16ToFloat(0x7f7f);
  EXPECT_TRUE(std::isfinite(sum_with_last(largest_bf16, largest_bf16, DType::kBF16)));
  EXPECT_TRUE(std::isfinite(sum_with_last(Limits::max(), Limits::max(), DType::kF32)));
  EXPECT_TRUE(std::isfinite(sum_with_last(65504.0f, 65519.0f, DType::kF16)));
  // The last ones are finite in fp32 and infinite in the 16 bits.
  EXPECT_FALSE(std::isfinite(sum_with_last(1.0f, Limits::max(), DType::kBF16)));
  EXPECT_FALSE(std::isfinite(sum_with_last(1.0f, 65520.0f, DType::kF16)));
  for (const float bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    for (const DType dtype : kDTypes) {
      EXPECT_FALSE(std::isfinite(sum_with_last(1.0f, bad, dtype)));
    }
  }
}

}  // namespace
}  // namespace forebay
