#include "forebay/model/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "reference.h"

namespace forebay::cpu {
namespace {

TEST(NarrowToBf16, EqualsTheScalarConversionForEveryUpperHalfAndRoundingCase) {
  Floats in;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<Bf16> out(in.size());
  kernels::NarrowToBf16(in.data(), static_cast<int64_t>(in.size()), out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i], FloatToBf16(in[i])) << std::hex << std::bit_cast<uint32_t>(in[i]);
  }
}

TEST(Widen, EqualsTheScalarConversionForEveryValue) {
  std::vector<uint16_t> in;
  for (uint32_t value = 0; value < 0x10000; ++value) in.push_back(static_cast<uint16_t>(value));
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Floats out(in.size());
    kernels::Widen(in.data(), dtype, static_cast<int64_t>(in.size()), out.data());
    for (size_t i = 0; i < in.size(); ++i) {
      const float expected = dtype == DType::kBF16 ? Bf16ToFloat(in[i]) : Fp16ToFloat(in[i]);
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << in[i];
    }
  }
}

TEST(RoundToFp16, EqualsTheScalarConversions) {
  Floats in;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x8000u, 0xffffu}) {
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  Floats out(in.size()), sums(in.size(), 1.0f);
  const auto count = static_cast<int64_t>(in.size());
  kernels::RoundToFp16(in.data(), count, out.data());
  kernels::AddRoundedToFp16(in.data(), count, sums.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const float expected = Fp16ToFloat(FloatToFp16(in[i]));
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << in[i];
    if (std::isnan(expected)) continue;
    ASSERT_EQ(sums[i], 1.0f + expected) << in[i];
  }
  kernels::RoundToFp16(in.data(), count, in.data());
  EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size() * sizeof(float)), 0);
}

TEST(NarrowScaledToBf16, EqualsScalingThenNarrowing) {
  const float factor = 0.37f;
  Floats in = RandomFloats(77, 1);
  in[3] = NAN;
  const int64_t count = std::ssize(in);
  std::vector<Bf16> out(in.size()), expected(in.size());
  kernels::NarrowScaledToBf16(in.data(), factor, count, out.data());
  kernels::Scale(factor, count, in.data());
  kernels::NarrowToBf16(in.data(), count, expected.data());
  EXPECT_EQ(out, expected);
}

TEST(ExpInPlace, IsWithinTwoUlpsOverTheRangeOfFp32) {
  Floats x;
  for (float value = -87.0f; value <= 0.0f; value += 0.0137f) x.push_back(value);
  const Floats before = x;
  kernels::ExpInPlace(0.0f, static_cast<int64_t>(x.size()), x.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(double{before[i]});
    ASSERT_LT(std::abs(x[i] - expected), 2 * 0x1p-23 * expected) << before[i];
  }
}

TEST(SumExp, EqualsTheSumOfExpInPlace) {
  Floats x = RandomFloats(1001, 1, 3.0);
  const float max = kernels::Max(x.data(), 1001);
  const float sum = kernels::SumExp(x.data(), max, 1001);
  EXPECT_EQ(kernels::ExpInPlace(max, 1001, x.data()), sum);
}

TEST(ExpInPlace, KeepsNaN) {
  Floats x(17, NAN);
  EXPECT_TRUE(std::isnan(kernels::ExpInPlace(0.0f, 17, x.data())));
  for (const float value : x) EXPECT_TRUE(std::isnan(value));
}

TEST(Max, FindsTheLargestAtEveryPlace) {
  for (size_t place = 0; place < 37; ++place) {
    Floats x(37, -5.0f);
    x[place] = -4.0f;
    EXPECT_EQ(kernels::Max(x.data(), 37), -4.0f);
  }
}

}  // namespace
}  // namespace forebay::cpu
