// 16-bit floats in kernels, with the bits of base/bfloat16.h (also of what is no number, where
// CUDA's own conversions differ).
#pragma once

#include <cstdint>

#include "forebay/device/kernel.h"

namespace forebay {

// As Fp16ToFloat and FloatToFp16.
inline __device__ float FloatOfFp16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return __uint_as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = __fmul_rn(static_cast<float>(mantissa), 0x1p-24f);
  return sign ? -magnitude : magnitude;
}
inline __device__ uint16_t Fp16OfFloat(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    const float shifted = __fadd_rn(__uint_as_float(magnitude), 0.5f);
    return static_cast<uint16_t>(sign | (__float_as_uint(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// As Bf16ToFloat and FloatToBf16.
inline __device__ float FloatOfBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
inline __device__ uint16_t Bf16OfFloat(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace forebay
