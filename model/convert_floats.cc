#include "forebay/model/convert_floats.h"

#include <bit>

#include "forebay/base/check.h"

namespace forebay {
namespace {

// Fp16ToFloat without branches. The exponent's bias grows from 15 to 127. A subnormal is read as a
// normal number of the smallest exponent, which is then subtracted: exact, also where the processor
// flushes subnormal floats to zero.
inline float WidenFp16(Fp16 half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t one_exponent = magnitude < 0x400u ? 0x00800000u : 0u;
  const uint32_t smallest = magnitude < 0x400u ? 0x38800000u : 0u;
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // infinity and NaN
  const float widened = std::bit_cast<float>((magnitude << 13) + 0x38000000u + one_exponent) -
                        std::bit_cast<float>(smallest);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(widened) | special | sign);
}

}  // namespace

void ConvertBf16ToF32(std::span<const Bf16> from, std::span<float> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const Bf16* const __restrict source = from.data();
  float* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = Bf16ToFloat(source[i]);
}

void ConvertF16ToF32(std::span<const Fp16> from, std::span<float> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const Fp16* const __restrict source = from.data();
  float* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = WidenFp16(source[i]);
}

void ConvertF32ToBf16(std::span<const float> from, std::span<Bf16> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const float* const __restrict source = from.data();
  Bf16* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = FloatToBf16(source[i]);
}

void ConvertF16ToBf16(std::span<const Fp16> from, std::span<Bf16> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const Fp16* const __restrict source = from.data();
  Bf16* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = FloatToBf16(WidenFp16(source[i]));
}

}  // namespace forebay
