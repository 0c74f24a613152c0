// Cross-entropy through the output projection, some tokens at a time. Tokens that are not trained
// have gradients of zero: which they are is known on the device alone.
#include "forebay/model/cuda/loss.h"

#include <algorithm>
#include <cstddef>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda/linear_products.h"
#include "forebay/model/cuda/loss_sizes.h"
#include "forebay/model/cuda/scratch_parts.h"

namespace forebay::cuda {

absl::Status CrossEntropy(Context& context, const Linear& head, const void* x,
                          const int32_t* targets, int64_t tokens, int64_t most_logits,
                          const LossGradients& gradients, double* loss_sum) {
  FOREBAY_CHECK(head.bias == nullptr);
  const int64_t chunk = LossChunkTokens(tokens, head.out, most_logits);
  const int64_t num_logits = chunk * LogitStride(head.out);
  ScratchParts scratch(context);
  float* const losses = scratch.Take<float>(tokens);
  float* const logits = scratch.Take<float>(num_logits);
  void* dlogits = nullptr;
  if (gradients.dx != nullptr) {
    dlogits = context.dtype() == DType::kF32 ? static_cast<void*>(logits)
                                             : scratch.Take<uint16_t>(num_logits);
  }
  const int64_t stride = LogitStride(head.out);
  const int64_t x_row_bytes = head.in * SizeOf(context.dtype());
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t rows = std::min(chunk, tokens - first);
    const auto* const of_x = static_cast<const std::byte*>(x) + first * x_row_bytes;
    FOREBAY_RETURN_IF_ERROR(MultiplyForward(
        context, head, of_x, rows, {.rows = logits, .stride = stride, .dtype = DType::kF32}));
    FOREBAY_RETURN_IF_ERROR(LossOfRows(
        context, {.logits = logits, .targets = targets + first, .rows = rows, .vocab = head.out},
        gradients.scale, losses + first, dlogits));
    if (dlogits == nullptr) continue;
    const LinearGradient dy = {.rows = dlogits, .stride = stride};
    FOREBAY_RETURN_IF_ERROR(MultiplyBackwardInput(
        context, head, dy, rows, static_cast<std::byte*>(gradients.dx) + first * x_row_bytes,
        /*accumulate=*/false));
    FOREBAY_RETURN_IF_ERROR(
        MultiplyBackwardWeight(context, head, of_x, dy, rows, gradients.dweight));
  }
  return SumInDouble(context, losses, tokens, loss_sum);
}

absl::Status CrossEntropyForward(Context& context, const Linear& head, const void* x,
                                 const int32_t* targets, int64_t tokens, double* loss_sum) {
  return CrossEntropy(context, head, x, targets, tokens, kMostLogits, {}, loss_sum);
}

absl::Status CrossEntropyForwardBackward(Context& context, const Linear& head, const void* x,
                                         const int32_t* targets, int64_t tokens, double scale,
                                         double* loss_sum, void* dx, float* dweight) {
  FOREBAY_CHECK(dx != nullptr && dweight != nullptr);
  return CrossEntropy(context, head, x, targets, tokens, kMostLogits,
                      {.scale = scale, .dx = dx, .dweight = dweight}, loss_sum);
}

absl::Status Logits(Context& context, const Linear& head, const void* x, int64_t rows,
                    float* logits) {
  FOREBAY_CHECK(head.bias == nullptr);
  return MultiplyForward(context, head, x, rows, {.rows = logits, .dtype = DType::kF32});
}

}  // namespace forebay::cuda
