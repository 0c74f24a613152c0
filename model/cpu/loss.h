// Cross-entropy with its chunk sizes as parameters, so that tests reach every path with small
// vocabularies.
#pragma once

#include "forebay/model/cpu/ops.h"

namespace forebay::cpu {

// At least what is kept of one trained row besides its logits.
inline constexpr int64_t kLossRowBytes = 64;

struct LossChunks {
  int64_t max_tokens = 256;
  int64_t max_logits = int64_t{16} << 20;  // fp32 elements kept at a time: 64 MiB
  // Vocabulary entries of one chunk: all of them where max_tokens rows of logits fit, else equal
  // chunks that do.
  int64_t VocabChunk(int64_t vocab) const;
};

// Gradients wanted, or nullptr both.
struct LossGradients {
  double scale = 1;
  float* dx = nullptr;       // [tokens, hidden], overwritten
  float* dweight = nullptr;  // [vocab, hidden], +=
};
LossResult CrossEntropy(Context& context, const Linear& head, const float* x,
                        std::span<const int32_t> targets, const LossChunks& chunks,
                        const LossGradients& gradients);

}  // namespace forebay::cpu
