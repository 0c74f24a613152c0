#include "forebay/model/cuda/scratch.h"

#include <algorithm>

#include "forebay/model/cuda/attention_scratch.h"
#include "forebay/model/cuda/loss_sizes.h"
#include "forebay/model/cuda/scratch_sizes.h"

namespace forebay::cuda {
namespace {

// Gradients of biases and norms take so many at most: two sums each (LayerNorm's weight and bias).
int64_t ColumnSumBytes(int64_t width) {
  return 2 * AlignedScratch(kMostPartialSums * width * 4);
}

}  // namespace

int64_t ScratchBytes(DType dtype, int64_t max_tokens, int64_t hidden, int64_t intermediate,
                     int64_t vocab, int64_t heads, int64_t head_dim) {
  const int64_t widest = std::max({hidden, intermediate, heads * head_dim});
  return std::max({ColumnSumBytes(widest), LossScratchBytes(dtype, max_tokens, vocab, kMostLogits),
                   AttentionScratchBytes(max_tokens, heads)});
}

}  // namespace forebay::cuda
