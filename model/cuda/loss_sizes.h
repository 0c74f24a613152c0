// How cross-entropy is cut, and what of it lies in scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "forebay/base/dtype.h"
#include "forebay/model/cuda/scratch_sizes.h"
#include "forebay/model/operands/vocabulary_cut.h"

namespace forebay::cuda {

// Logits kept at a time: as fp32, and their gradients in the operands' type (fp32 takes their
// place). More would only help the product that adds to dweight, which is read and written once a
// chunk.
inline constexpr int64_t kMostLogits = int64_t{64} << 20;

// How cross-entropy is cut: some tokens at a time, and a large vocabulary in parts.
struct LossChunks {
  int64_t most_logits = kMostLogits;
  VocabularyCut cut;
};

// Rows of logits and of their gradients begin on 16 bytes.
constexpr int64_t LogitStride(int64_t vocab) {
  return (vocab + 7) / 8 * 8;
}
// Tokens of one chunk: all chunks but the last have as many.
constexpr int64_t LossChunkTokens(int64_t tokens, int64_t vocab, int64_t most_logits) {
  const int64_t most = std::max<int64_t>(1, most_logits / LogitStride(vocab));
  const int64_t num_chunks = std::max<int64_t>(1, (tokens + most - 1) / most);
  return std::max<int64_t>(1, (tokens + num_chunks - 1) / num_chunks);
}
constexpr int64_t LossScratchBytes(DType dtype, int64_t tokens, int64_t vocab,
                                   int64_t most_logits) {
  const int64_t most_tokens = std::max<int64_t>(1, most_logits / LogitStride(vocab));
  const int64_t num_logits = std::min(tokens, most_tokens) * LogitStride(vocab);
  const int64_t gradients = dtype == DType::kF32 ? 0 : AlignedScratch(num_logits * SizeOf(dtype));
  return AlignedScratch(tokens * 4) + AlignedScratch(num_logits * 4) + gradients;
}

}  // namespace forebay::cuda
