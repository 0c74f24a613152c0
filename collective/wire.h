// fp32 values as they go from rank to rank where they are rounded to 16 bits on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/base/dtype.h"

namespace forebay {

// values: [n] fp32. narrow: [n] of `wire` (kBF16, kF16), nearest, ties to even; they do not
// overlap.
void Narrow(std::span<const float> values, DType wire, std::byte* narrow);
void Widen(const std::byte* narrow, DType wire, std::span<float> values);

// As SumInRankOrder (collective/sum_in_rank_order.h) of values of `wire`: added in fp32, and the
// sums rounded as the values were. narrow: [ranks] pointers to [sum.size()].
void SumNarrowInRankOrder(std::span<const std::byte* const> narrow, DType wire,
                          std::span<float> sum);

}  // namespace forebay
