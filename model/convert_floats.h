// Conversions between the float formats of checkpoints, in bulk: plain loops without branches,
// which compilers vectorise. Bit for bit those of base/bfloat16.h.
#pragma once

#include <cstdint>
#include <span>

#include "forebay/base/bfloat16.h"

namespace forebay {

// All: spans of equal length that do not overlap. Widening is exact; narrowing rounds to nearest,
// ties to even.
void ConvertBf16ToF32(std::span<const Bf16> from, std::span<float> to);
void ConvertF16ToF32(std::span<const Fp16> from, std::span<float> to);
void ConvertF32ToBf16(std::span<const float> from, std::span<Bf16> to);
void ConvertF16ToBf16(std::span<const Fp16> from, std::span<Bf16> to);

}  // namespace forebay
