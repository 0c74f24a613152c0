// Cross-entropy with its chunks as a parameter, so that tests reach every path with small
// vocabularies; and its kernels.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/loss_sizes.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

// The caller wants these beside the loss; nullptr: not. dweight is made with dx alone.
struct LossGradients {
  double scale = 1;
  void* dx = nullptr;            // [tokens, hidden], overwritten
  float* dweight = nullptr;      // as the head is stored, added to
  float* log_sum_exp = nullptr;  // [tokens], of trained tokens written
};
absl::Status CrossEntropy(Context& context, const Linear& head, const void* x,
                          const int32_t* targets, int64_t tokens, const LossChunks& chunks,
                          const LossGradients& gradients, double* loss_sum);
// As ops.h has it.
absl::Status ProjectionGradient(Context& context, const Linear& head, const void* x,
                                const int32_t* targets, int64_t tokens, const LossChunks& chunks,
                                double scale, const float* log_sum_exp, int64_t first_row,
                                float* dweight);

// Rows of logits, `stride` elements apart, of the entries [first, first + entries) of a vocabulary.
// They have room for whole accesses of 8.
struct LogitRows {
  const float* logits = nullptr;
  const int32_t* targets = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t entries = 0;
  int64_t stride = 0;
  int64_t first = 0;
};
// Takes all entries. losses [rows]: -log p(target), 0 where the target is -1. `log_sum_exp` [rows]
// (nullptr: none): written where it is not. `dlogits` (nullptr: none): rows of the context's type
// with the same stride, (p - onehot) * scale, 0 where the target is -1; may be the logits.
absl::Status LossOfRows(Context& context, const LogitRows& rows, double scale, float* losses,
                        float* log_sum_exp, void* dlogits);
// The same `dlogits` from the sums that are known.
absl::Status GradientOfRows(Context& context, const LogitRows& rows, double scale,
                            const float* log_sum_exp, void* dlogits);
// *sum = the sum of values [count], in an order that `count` decides.
absl::Status SumInDouble(Context& context, const float* values, int64_t count, double* sum);

}  // namespace forebay::cuda
