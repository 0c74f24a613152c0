// Cross-entropy with its chunks as a parameter, so that tests reach every path with small
// vocabularies; and its kernels.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

// Gradients wanted, or nullptr both.
struct LossGradients {
  double scale = 1;
  void* dx = nullptr;        // [tokens, hidden], overwritten
  float* dweight = nullptr;  // as the head is stored, added to
};
absl::Status CrossEntropy(Context& context, const Linear& head, const void* x,
                          const int32_t* targets, int64_t tokens, int64_t most_logits,
                          const LossGradients& gradients, double* loss_sum);

// Rows of logits, LogitStride(vocab) elements each.
struct LogitRows {
  const float* logits = nullptr;
  const int32_t* targets = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t vocab = 0;
};
// losses [rows]: -log p(target), 0 where the target is -1. `dlogits` (nullptr: none): rows of the
// context's type, (p - onehot) * scale, 0 where the target is -1; may be the logits.
absl::Status LossOfRows(Context& context, const LogitRows& rows, double scale, float* losses,
                        void* dlogits);
// *sum = the sum of values [count], in an order that `count` decides.
absl::Status SumInDouble(Context& context, const float* values, int64_t count, double* sum);

}  // namespace forebay::cuda
