#include "forebay/base/bfloat16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t BitsOf(float value) {
  return std::bit_cast<uint32_t>(value);
}

// What IEEE 754 says that a 16-bit pattern means, computed without any of the code under test.
double ValueOf(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Rounding is monotonic, so it is right everywhere when it is right at every representable value,
// at every midpoint between two of them and directly beside each midpoint.
template <typename Round>
void CheckRoundingToNearestEven(Round round, int exponent_bits, int mantissa_bits) {
  const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  for (const uint16_t sign : {0x0000, 0x8000}) {
    for (uint16_t low = 0; low < infinity; ++low) {
      const uint16_t high = low + 1;
      const uint16_t even = (low & 1) == 0 ? low : high;
      // Infinity stands for the value that would follow the greatest finite one.
      const double low_value = ValueOf(low, exponent_bits, mantissa_bits);
      const double middle = (low_value + ValueOf(high, exponent_bits, mantissa_bits)) / 2;
      const float signed_middle = static_cast<float>(sign != 0 ? -middle : middle);
      ASSERT_EQ(std::abs(static_cast<double>(signed_middle)), middle) << "the test needs exactness";
      const float towards_zero = std::nextafter(signed_middle, 0.0f);
      const float away = std::nextafter(signed_middle, sign != 0 ? -kInfinity : kInfinity);
      const float exact = static_cast<float>(sign != 0 ? -low_value : low_value);
      ASSERT_EQ(round(exact), sign | low);
      ASSERT_EQ(round(towards_zero), sign | low);
      ASSERT_EQ(round(signed_middle), sign | even);
      ASSERT_EQ(round(away), sign | high);
    }
  }
}

TEST(Bf16, EveryPatternConvertsToItsValue) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7f80) == 0x7f80) continue;
    ASSERT_EQ(Bf16ToFloat(static_cast<Bf16>(bits)), ValueOf(static_cast<uint16_t>(bits), 8, 7));
  }
}

TEST(Bf16, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  CheckRoundingToNearestEven(FloatToBf16, 8, 7);
}

TEST(Bf16, InfinityStaysInfinityAndNanStaysNan) {
  EXPECT_EQ(FloatToBf16(kInfinity), 0x7f80);
  EXPECT_EQ(FloatToBf16(-kInfinity), 0xff80);
  // Payloads in the low half alone must not turn into infinity.
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(Fp16, EveryPatternConvertsToItsValue) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;
    const float value = Fp16ToFloat(static_cast<Fp16>(bits));
    ASSERT_EQ(value, ValueOf(static_cast<uint16_t>(bits), 5, 10));
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
}

TEST(Fp16, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  CheckRoundingToNearestEven(FloatToFp16, 5, 10);
}

TEST(Fp16, OverflowBecomesInfinityAndTinyValuesKeepTheirSign) {
  EXPECT_EQ(FloatToFp16(1e9f), 0x7c00);
  EXPECT_EQ(FloatToFp16(-kInfinity), 0xfc00);
  EXPECT_EQ(FloatToFp16(1e-30f), 0x0000);
  EXPECT_EQ(FloatToFp16(-1e-30f), 0x8000);
}

TEST(Fp16, InfinityAndNanConvertBothWays) {
  EXPECT_EQ(Fp16ToFloat(0x7c00), kInfinity);
  EXPECT_EQ(Fp16ToFloat(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(Fp16ToFloat(0x7e01)));
  EXPECT_TRUE(std::isnan(Fp16ToFloat(FloatToFp16(std::bit_cast<float>(0xffc00000u)))));
}

// True when split and join return the very bits, for patterns first, first + stride, ...
bool SplitIsExact(uint64_t first, uint64_t stride) {
  for (uint64_t bits = first; bits <= 0xffffffffu; bits += stride) {
    const SplitMaster parts = Split(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    if (BitsOf(Join(parts.w16, parts.r16)) != bits) {
      ADD_FAILURE() << std::hex << "pattern 0x" << bits;
      return false;
    }
  }
  return true;
}

TEST(Split, IsExactOnASampleOfAllPatterns) {
  EXPECT_TRUE(SplitIsExact(0, 1009));
}

TEST(Split, IsExactAroundEveryTie) {
  for (const uint64_t low : {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff}) {
    EXPECT_TRUE(SplitIsExact(low, 0x10000));
  }
}

TEST(Split, IsExactExhaustively) {
  EXPECT_TRUE(SplitIsExact(0, 1));
}

TEST(Split, WeightDiffersFromNearestEvenOnTiesAlone) {
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    for (const uint32_t low : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      const uint16_t expected =
          low == 0x8000 ? static_cast<uint16_t>(high + 1) : FloatToBf16(value);
      ASSERT_EQ(Split(value).w16, expected) << std::hex << high << " " << low;
    }
  }
}

}  // namespace
}  // namespace forebay
