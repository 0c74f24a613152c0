#include "forebay/collective/wire.h"

#include <algorithm>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

// Sums and what is added to them lie in the first-level cache.
constexpr size_t kBlock = 2048;

}  // namespace

void Narrow(std::span<const float> values, DType wire, std::byte* narrow) {
  FOREBAY_CHECK(wire != DType::kF32);
  auto* const to = reinterpret_cast<uint16_t*>(narrow);
  if (wire == DType::kBF16) {
    for (size_t i = 0; i < values.size(); ++i) to[i] = FloatToBf16(values[i]);
  } else {
    for (size_t i = 0; i < values.size(); ++i) to[i] = FloatToFp16(values[i]);
  }
}

void Widen(const std::byte* narrow, DType wire, std::span<float> values) {
  FOREBAY_CHECK(wire != DType::kF32);
  const auto* const from = reinterpret_cast<const uint16_t*>(narrow);
  if (wire == DType::kBF16) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = Bf16ToFloat(from[i]);
  } else {
    for (size_t i = 0; i < values.size(); ++i) values[i] = Fp16ToFloat(from[i]);
  }
}

void SumNarrowInRankOrder(std::span<const std::byte* const> narrow, DType wire,
                          std::span<float> sum) {
  float addends[kBlock];
  uint16_t rounded[kBlock];
  for (size_t begin = 0; begin < sum.size(); begin += kBlock) {
    const std::span<float> block = sum.subspan(begin, std::min(kBlock, sum.size() - begin));
    Widen(narrow[0] + 2 * begin, wire, block);
    for (const std::byte* const of_rank : narrow.subspan(1)) {
      Widen(of_rank + 2 * begin, wire, std::span(addends).first(block.size()));
      for (size_t i = 0; i < block.size(); ++i) block[i] += addends[i];
    }
    Narrow(block, wire, reinterpret_cast<std::byte*>(rounded));
    Widen(reinterpret_cast<const std::byte*>(rounded), wire, block);
  }
}

}  // namespace forebay
