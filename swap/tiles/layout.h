// The bytes that storage keeps for one parameter (docs/formats.md, "Tiles and areas").
//
// Two areas with separate slots, since forward and backward read the weights alone:
//   weights area  one plane: w16 (bf16, or fp16 rounded from the master) or the fp32 weight
//   state area    the rest, as planes one after another within a tile (tile_planes.h)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "forebay/base/dtype.h"

namespace forebay {

// Bytes a parameter, with the two moments of AdamW.
enum class Layout : uint8_t {
  kBf16,         // 12: w16, r16 (exact fp32 master), m fp32, v fp32
  kFp16,         // 14: fp16 weight, fp32 master, m fp32, v fp32
  kFp32,         // 12: fp32 weight, m fp32, v fp32
  kBf16Moments,  // 8: w16, r16, m bf16, v bf16
  kInt8Moments,  // 6.125: w16, r16, m int8, v uint8, and two scales for each kMomentBlockElems
};
inline constexpr Layout kLayouts[] = {Layout::kBf16, Layout::kFp16, Layout::kFp32,
                                      Layout::kBf16Moments, Layout::kInt8Moments};

constexpr std::string_view NameOf(Layout layout) {
  switch (layout) {
    case Layout::kBf16:
      return "bf16";
    case Layout::kFp16:
      return "fp16";
    case Layout::kFp32:
      return "fp32";
    case Layout::kBf16Moments:
      return "bf16-moments";
    case Layout::kInt8Moments:
      return "int8-moments";
  }
  return "";
}
constexpr std::optional<Layout> LayoutOf(std::string_view name) {
  for (const Layout layout : kLayouts) {
    if (NameOf(layout) == name) return layout;
  }
  return std::nullopt;
}

enum class WeightFormat : uint8_t {
  kSplitBf16,  // w16 and its remainder: an exact fp32 master (base/bfloat16.h)
  kFp16,       // an fp32 master, and its rounding to fp16
  kFp32,
};
constexpr WeightFormat WeightFormatOf(Layout layout) {
  switch (layout) {
    case Layout::kFp16:
      return WeightFormat::kFp16;
    case Layout::kFp32:
      return WeightFormat::kFp32;
    case Layout::kBf16:
    case Layout::kBf16Moments:
    case Layout::kInt8Moments:
      break;
  }
  return WeightFormat::kSplitBf16;
}
// The type of an element in the weights area.
constexpr DType WeightDType(WeightFormat weights) {
  return weights == WeightFormat::kFp32   ? DType::kF32
         : weights == WeightFormat::kFp16 ? DType::kF16
                                          : DType::kBF16;
}
constexpr DType WeightDType(Layout layout) {
  return WeightDType(WeightFormatOf(layout));
}
// The one that keeps weights so, with a master and moments in fp32.
constexpr Layout ExactLayoutOf(DType weights) {
  return weights == DType::kF32   ? Layout::kFp32
         : weights == DType::kF16 ? Layout::kFp16
                                  : Layout::kBf16;
}
constexpr int64_t WeightBytesPerElem(WeightFormat weights) {
  return weights == WeightFormat::kFp32 ? 4 : 2;
}
constexpr int64_t WeightBytesPerElem(Layout layout) {
  return WeightBytesPerElem(WeightFormatOf(layout));
}

// In less than fp32, but for small tensors (base/tensor_spec.h), which have few bytes to save.
// optimizer/kernels/tile_update.h says what the codes mean.
enum class MomentFormat : uint8_t {
  kFp32,
  kBf16,
  kInt8,  // codes with a scale for each kMomentBlockElems
};
inline constexpr int64_t kMomentBlockElems = 32;
constexpr MomentFormat MomentFormatOf(Layout layout) {
  return layout == Layout::kBf16Moments   ? MomentFormat::kBf16
         : layout == Layout::kInt8Moments ? MomentFormat::kInt8
                                          : MomentFormat::kFp32;
}
// Without scales.
constexpr int64_t MomentBytesPerElem(MomentFormat moments) {
  return moments == MomentFormat::kFp32 ? 4 : moments == MomentFormat::kBf16 ? 2 : 1;
}
// Whether moments are less than what was computed.
constexpr bool IsLossy(Layout layout) {
  return MomentFormatOf(layout) != MomentFormat::kFp32;
}

// Which moments the optimizer of a store has.
struct MomentSet {
  bool m = true;
  bool v = true;
  friend bool operator==(const MomentSet&, const MomentSet&) = default;
};

// A store with two slots has a step written beside the one that is committed; with one, over it.
inline constexpr int kMostSlots = 2;

}  // namespace forebay
