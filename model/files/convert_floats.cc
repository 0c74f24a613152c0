#include "forebay/model/files/convert_floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

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

// FloatToFp16 without branches: each case is worked out, and one is chosen. Where the processor
// flushes subnormal floats to zero, nothing changes: as halves they are zero.
inline Fp16 NarrowToFp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN, infinity
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return static_cast<Fp16>(sign | (magnitude >= 0x477ff000u ? special : finite));
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

void ConvertF32ToF16(std::span<const float> from, std::span<Fp16> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const float* const __restrict source = from.data();
  Fp16* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = NarrowToFp16(source[i]);
}

void ConvertF16ToBf16(std::span<const Fp16> from, std::span<Bf16> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const Fp16* const __restrict source = from.data();
  Bf16* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = FloatToBf16(WidenFp16(source[i]));
}

void ConvertBf16ToF16(std::span<const Bf16> from, std::span<Fp16> to) {
  FOREBAY_CHECK(from.size() == to.size());
  const Bf16* const __restrict source = from.data();
  Fp16* const __restrict target = to.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) target[i] = NarrowToFp16(Bf16ToFloat(source[i]));
}

void ConvertF32(std::span<const float> from, DType dtype, std::span<std::byte> to) {
  FOREBAY_CHECK(from.size() * SizeOf(dtype) == to.size());
  const std::span halves(reinterpret_cast<uint16_t*>(to.data()), from.size());
  switch (dtype) {
    case DType::kF32:
      std::ranges::copy(std::as_bytes(from), to.begin());
      return;
    case DType::kBF16:
      ConvertF32ToBf16(from, halves);
      return;
    case DType::kF16:
      ConvertF32ToF16(from, halves);
      return;
  }
}

void ConvertFloats(DType from_dtype, std::span<const std::byte> from, DType to_dtype,
                   std::span<std::byte> to) {
  const size_t count = from.size() / static_cast<size_t>(SizeOf(from_dtype));
  FOREBAY_CHECK(count * static_cast<size_t>(SizeOf(to_dtype)) == to.size());
  if (from_dtype == to_dtype) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  if (from_dtype == DType::kF32) {
    return ConvertF32({reinterpret_cast<const float*>(from.data()), count}, to_dtype, to);
  }
  const std::span halves(reinterpret_cast<const uint16_t*>(from.data()), count);
  const bool is_bf16 = from_dtype == DType::kBF16;
  if (to_dtype == DType::kF32) {
    const std::span floats(reinterpret_cast<float*>(to.data()), count);
    return is_bf16 ? ConvertBf16ToF32(halves, floats) : ConvertF16ToF32(halves, floats);
  }
  const std::span others(reinterpret_cast<uint16_t*>(to.data()), count);
  return is_bf16 ? ConvertBf16ToF16(halves, others) : ConvertF16ToBf16(halves, others);
}

std::optional<float> FirstBeyondFp16(std::span<const float> values) {
  constexpr float kLeastBeyond = 65520;  // half-way to what would be the next number
  const auto found = std::ranges::find_if(
      values, [](float value) { return std::isfinite(value) && std::fabs(value) >= kLeastBeyond; });
  return found == values.end() ? std::nullopt : std::optional(*found);
}

}  // namespace forebay
