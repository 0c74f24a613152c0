// What storage keeps for one parameter (design: "What a parameter costs"; docs/formats.md).
//
// Two areas with separate slots, since forward and backward read the weights alone:
//   weights area  one plane: w16 (bf16 layout) or the fp32 weight (fp32 layout)
//   state area    planes one after another within a tile: [r16] m v
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "forebay/base/dtype.h"

namespace forebay {

enum class Layout : uint8_t {
  kBf16,  // 12 B: w16, r16 (exact fp32 master), m fp32, v fp32
  kFp32,  // 12 B: fp32 weight, m fp32, v fp32
};

constexpr std::string_view NameOf(Layout layout) {
  return layout == Layout::kBf16 ? "bf16" : "fp32";
}
constexpr DType WeightDType(Layout layout) {
  return layout == Layout::kBf16 ? DType::kBF16 : DType::kF32;
}
constexpr int64_t WeightBytesPerElem(Layout layout) {
  return layout == Layout::kBf16 ? 2 : 4;
}
constexpr int64_t StateBytesPerElem(Layout layout) {
  return layout == Layout::kBf16 ? 10 : 8;
}

// Of a store: with two, a step is written beside the one that is committed; with one, over it.
inline constexpr int kMostSlots = 2;

}  // namespace forebay
