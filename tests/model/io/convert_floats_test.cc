#include "forebay/model/files/convert_floats.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

std::vector<uint16_t> AllHalves() {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  return halves;
}
// Every 65521st pattern (a prime) meets ties, subnormals, infinities and NaN.
std::vector<float> Sample() {
  std::vector<float> floats = {1.00390625f, 1.01171875f, std::numeric_limits<float>::infinity(),
                               std::nanf("")};
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 65521) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return floats;
}
uint32_t BitsOf(float value) {
  return std::bit_cast<uint32_t>(value);
}

TEST(ConvertFloats, WidensEveryBf16AsTheScalarFunctionDoes) {
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<float> floats(halves.size());
  ConvertBf16ToF32(halves, floats);
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(BitsOf(floats[i]), BitsOf(Bf16ToFloat(halves[i]))) << i;
}

TEST(ConvertFloats, WidensEveryFp16AsTheScalarFunctionDoes) {
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<float> floats(halves.size());
  ConvertF16ToF32(halves, floats);
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(BitsOf(floats[i]), BitsOf(Fp16ToFloat(halves[i]))) << i;
}

TEST(ConvertFloats, RoundsFloatsToBf16AsTheScalarFunctionDoes) {
  const std::vector<float> floats = Sample();
  std::vector<Bf16> halves(floats.size());
  ConvertF32ToBf16(floats, halves);
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(halves[i], FloatToBf16(floats[i])) << floats[i];
}

TEST(ConvertFloats, RoundsFloatsToFp16AsTheScalarFunctionDoes) {
  std::vector<float> floats = Sample();
  // Every half, what is halfway to the next one, and the neighbours of that.
  for (const uint16_t half : AllHalves()) {
    const float value = Fp16ToFloat(half);
    const float next = Fp16ToFloat(static_cast<uint16_t>(half + 1));
    const float middle = value + (next - value) / 2;
    for (const float toward : {value, next}) floats.push_back(std::nextafter(middle, toward));
    floats.insert(floats.end(), {value, middle});
  }
  for (const float edge : {65504.0f, 65519.996f, 65520.0f, 65536.0f}) {
    floats.insert(floats.end(), {edge, -edge});
  }
  std::vector<Fp16> halves(floats.size());
  ConvertF32ToF16(floats, halves);
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(halves[i], FloatToFp16(floats[i])) << floats[i];
}

TEST(ConvertFloats, ToADTypeIsAsToItsElements) {
  const std::vector<float> floats = Sample();
  std::vector<float> copies(floats.size());
  std::vector<uint16_t> halves(floats.size()), expected(floats.size());
  ConvertF32(floats, DType::kF32, std::as_writable_bytes(std::span(copies)));
  EXPECT_EQ(std::memcmp(copies.data(), floats.data(), floats.size() * sizeof(float)), 0);
  ConvertF32(floats, DType::kBF16, std::as_writable_bytes(std::span(halves)));
  ConvertF32ToBf16(floats, expected);
  EXPECT_EQ(halves, expected);
  ConvertF32(floats, DType::kF16, std::as_writable_bytes(std::span(halves)));
  ConvertF32ToF16(floats, expected);
  EXPECT_EQ(halves, expected);
}

TEST(ConvertFloats, ConvertsFp16ToBf16ByWayOfFp32) {
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<Bf16> results(halves.size());
  ConvertF16ToBf16(halves, results);
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(results[i], FloatToBf16(Fp16ToFloat(halves[i]))) << i;
}

TEST(ConvertFloats, ConvertsBf16ToFp16ByWayOfFp32) {
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<Fp16> results(halves.size());
  ConvertBf16ToF16(halves, results);
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(results[i], FloatToFp16(Bf16ToFloat(halves[i]))) << i;
}

TEST(ConvertFloats, FindsTheFirstValueThatFp16HasNoNumberFor) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> fit = {0.0f,      65504.0f,   -65519.996f,
                                  kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(FirstBeyondFp16(fit), std::nullopt);
  for (const float beyond : {65520.0f, -65520.0f, 1e38f}) {
    std::vector<float> values = fit;
    values.insert(values.end(), {beyond, 2 * beyond});
    EXPECT_EQ(FirstBeyondFp16(values), beyond);
  }
}

}  // namespace
}  // namespace forebay
