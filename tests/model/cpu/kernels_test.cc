#include "forebay/model/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

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

TEST(WidenBf16, EqualsTheScalarConversionForEveryValue) {
  std::vector<Bf16> in;
  for (uint32_t value = 0; value < 0x10000; ++value) in.push_back(static_cast<Bf16>(value));
  Floats out(in.size());
  kernels::WidenBf16(in.data(), static_cast<int64_t>(in.size()), out.data());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(Bf16ToFloat(in[i])));
  }
}

TEST(NarrowTransposed, WritesTheTransposeOfAStridedBlock) {
  const int64_t rows = 70, columns = 45, stride = 61;
  const Floats in = RandomFloats(rows * stride, 1);
  std::vector<Bf16> out(static_cast<size_t>(rows * columns));
  kernels::NarrowTransposed(in.data(), rows, columns, stride, out.data());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      ASSERT_EQ(out[static_cast<size_t>(column * rows + row)],
                FloatToBf16(in[static_cast<size_t>(row * stride + column)]));
    }
  }
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
