// Conversions between the float formats of checkpoints, in bulk: plain loops without branches,
// which compilers vectorise. Bit for bit those of base/bfloat16.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "forebay/base/bfloat16.h"
#include "forebay/base/dtype.h"

namespace forebay {

// All: spans of equal length that do not overlap. Widening is exact; narrowing rounds to nearest,
// ties to even.
void ConvertBf16ToF32(std::span<const Bf16> from, std::span<float> to);
void ConvertF16ToF32(std::span<const Fp16> from, std::span<float> to);
void ConvertF32ToBf16(std::span<const float> from, std::span<Bf16> to);
void ConvertF32ToF16(std::span<const float> from, std::span<Fp16> to);
void ConvertF16ToBf16(std::span<const Fp16> from, std::span<Bf16> to);
void ConvertBf16ToF16(std::span<const Bf16> from, std::span<Fp16> to);
// `to`: as many elements of `dtype`, aligned to them.
void ConvertF32(std::span<const float> from, DType dtype, std::span<std::byte> to);
// Between any two, both aligned to their elements; a copy where they are the same.
void ConvertFloats(DType from_dtype, std::span<const std::byte> from, DType to_dtype,
                   std::span<std::byte> to);

inline constexpr float kLargestFp16 = 65504;
// The first finite value that fp16 has no number for, as it rounds to infinity.
std::optional<float> FirstBeyondFp16(std::span<const float> values);

}  // namespace forebay
