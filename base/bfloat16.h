// Scalar conversions of 16-bit floats and the exact split of an fp32 master. The
// vectorised versions live beside the kernels that need them and are tested against these.
#pragma once

#include <bit>
#include <cstdint>

namespace forebay {

// bf16 and fp16 values are carried as their bits.
using Bf16 = uint16_t;
using Fp16 = uint16_t;

constexpr float Bf16ToFloat(Bf16 bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
constexpr Bf16 FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x0040u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The exact layout: master = (w16 << 16) + r16 in integer arithmetic, for all 2^32 patterns.
struct SplitMaster {
  Bf16 w16;     // the master rounded to bf16: nearest, ties away from zero
  int16_t r16;  // what is left of the bits
};
constexpr SplitMaster Split(float master) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  const uint16_t w16 = static_cast<uint16_t>((bits + 0x8000u) >> 16);
  return {w16, static_cast<int16_t>(bits - (static_cast<uint32_t>(w16) << 16))};
}
// The second half of Join, where w16 has become a float already.
constexpr float JoinRest(float of_w16, int16_t r16) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(of_w16) +
                              static_cast<uint32_t>(static_cast<int32_t>(r16)));
}
constexpr float Join(Bf16 w16, int16_t r16) {
  return JoinRest(Bf16ToFloat(w16), r16);
}

constexpr float Fp16ToFloat(Fp16 bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Round to nearest, ties to even; overflow becomes infinity.
constexpr Fp16 FloatToFp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<Fp16>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<Fp16>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 aligns the mantissa so that the hardware rounds at fp16's subnormal step, 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<Fp16>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<Fp16>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace forebay
