// Cross-entropy with its chunk sizes as parameters, so that tests reach every path with small
// vocabularies.
#pragma once

#include "forebay/model/cpu/ops.h"

namespace forebay::cpu {

// At least what is kept of one trained row besides its logits.
inline constexpr int64_t kLossRowBytes = 64;

struct LossChunks {
  int64_t max_tokens = 256;
  VocabularyCut cut;
};

// The caller wants these beside the loss; nullptr: not. CrossEntropy makes dweight with dx alone.
struct LossGradients {
  double scale = 1;
  float* dx = nullptr;           // [tokens, hidden], overwritten
  float* dweight = nullptr;      // [vocab, hidden], +=
  float* log_sum_exp = nullptr;  // [tokens], of trained rows written
};
LossResult CrossEntropy(Context& context, const Linear& head, const float* x,
                        std::span<const int32_t> targets, const LossChunks& chunks,
                        const LossGradients& gradients);
// As ops.h has them.
void ProjectionGradient(Context& context, const ProjectionPart& part, const float* x,
                        std::span<const int32_t> targets, const LossChunks& chunks, double scale,
                        const float* log_sum_exp, float* dweight);
void LogitSumsOfPart(Context& context, const ProjectionPart& part, const float* x,
                     std::span<const int32_t> targets, const LossChunks& chunks, LogitSums* sums);
void InputGradientOfPart(Context& context, const ProjectionPart& part, const float* x,
                         std::span<const int32_t> targets, const LossChunks& chunks, double scale,
                         const float* log_sum_exp, float* dx);

}  // namespace forebay::cpu
