#include "forebay/model/convert_floats.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

std::vector<uint16_t> AllHalves() {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  return halves;
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
  std::vector<float> floats;
  // Every 65521st pattern (a prime) meets ties, subnormals, infinities and NaN.
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 65521) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const float value :
       {1.00390625f, 1.01171875f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    floats.push_back(value);
  }
  std::vector<Bf16> halves(floats.size());
  ConvertF32ToBf16(floats, halves);
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(halves[i], FloatToBf16(floats[i])) << floats[i];
}

TEST(ConvertFloats, ConvertsFp16ToBf16ByWayOfFp32) {
  const std::vector<uint16_t> halves = AllHalves();
  std::vector<Bf16> results(halves.size());
  ConvertF16ToBf16(halves, results);
  for (size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(results[i], FloatToBf16(Fp16ToFloat(halves[i]))) << i;
}

}  // namespace
}  // namespace forebay
