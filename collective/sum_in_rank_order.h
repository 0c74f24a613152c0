// The one order in which values of several ranks are added.
#pragma once

#include <cstdint>
#include <span>

namespace forebay {

// sum[i] = ((values[0][i] + values[1][i]) + values[2][i]) + ... in fp32. values: [ranks] pointers
// to [num_elems]; one of them may be `sum`, otherwise they do not overlap it.
void SumInRankOrder(std::span<const float* const> values, float* sum, int64_t num_elems);

}  // namespace forebay
