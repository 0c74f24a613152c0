#include "forebay/collective/sum_in_rank_order.h"

#include <algorithm>

namespace forebay {
namespace {

// So many sums lie in the first-level cache while one rank's values after another pass by.
constexpr int64_t kSumBlock = 2048;

}  // namespace

void SumInRankOrder(std::span<const float* const> values, float* sum, int64_t num_elems) {
  float block[kSumBlock];
  for (int64_t begin = 0; begin < num_elems; begin += kSumBlock) {
    const int64_t size = std::min(kSumBlock, num_elems - begin);
    std::copy_n(values[0] + begin, size, block);
    for (const float* const of_rank : values.subspan(1)) {
      const float* const addend = of_rank + begin;
      for (int64_t i = 0; i < size; ++i) block[i] += addend[i];
    }
    std::copy_n(block, size, sum + begin);
  }
}

}  // namespace forebay
