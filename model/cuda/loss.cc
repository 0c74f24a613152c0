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

namespace {

// Some tokens at a time, in the context's scratch memory. Logits of a part of the vocabulary lie
// where all of them would, so that products of parts are the same whoever wants them.
class ChunkedLoss {
 public:
  // `num_losses`: 0 where there is no sum of losses.
  ChunkedLoss(Context& context, const Linear& head, int64_t tokens, const LossChunks& chunks,
              int64_t num_losses, bool has_gradients)
      : context_(context),
        head_(head),
        chunk_tokens_(LossChunkTokens(tokens, head.out, chunks.most_logits)),
        stride_(LogitStride(head.out)),
        part_rows_(chunks.cut.PartRows(head.out)) {
    FOREBAY_CHECK(head.bias == nullptr && !head.in_out && head.row_stride == 0);
    ScratchParts scratch(context);
    losses_ = scratch.Take<float>(num_losses);
    logits_ = scratch.Take<float>(chunk_tokens_ * stride_);
    if (!has_gradients) return;
    dlogits_ = context.dtype() == DType::kF32
                   ? reinterpret_cast<std::byte*>(logits_)
                   : reinterpret_cast<std::byte*>(scratch.Take<uint16_t>(chunk_tokens_ * stride_));
  }

  int64_t chunk_tokens() const { return chunk_tokens_; }
  int64_t part_rows() const { return part_rows_; }
  float* losses() const { return losses_; }
  void* dlogits() const { return dlogits_; }
  LinearGradient Gradient() const { return {.rows = dlogits_, .stride = stride_}; }
  const std::byte* RowsOf(const void* x, int64_t first_token) const {
    return static_cast<const std::byte*>(x) + first_token * head_.in * ElemBytes();
  }

  // Takes these tokens, and the part that begins with `first`.
  absl::Status MakeLogits(const void* x, int64_t tokens, int64_t first) {
    return MultiplyForward(context_, Part(first), x, tokens,
                           {.rows = logits_ + first, .stride = stride_, .dtype = DType::kF32});
  }
  absl::Status AddToWeight(const void* x, int64_t tokens, int64_t first, float* dweight) {
    const LinearGradient dy = {.rows = dlogits_ + first * ElemBytes(), .stride = stride_};
    return MultiplyBackwardWeight(context_, Part(first), x, dy, tokens, dweight);
  }
  LogitRows All(const int32_t* targets, int64_t tokens) const {
    return {.logits = logits_,
            .targets = targets,
            .rows = tokens,
            .entries = head_.out,
            .stride = stride_};
  }
  absl::Status MakeGradientsOfPart(const int32_t* targets, int64_t tokens, double scale,
                                   const float* log_sum_exp, int64_t first) {
    const LogitRows rows = {.logits = logits_ + first,
                            .targets = targets,
                            .rows = tokens,
                            .entries = Part(first).out,
                            .stride = stride_,
                            .first = first};
    return GradientOfRows(context_, rows, scale, log_sum_exp, dlogits_ + first * ElemBytes());
  }

 private:
  int64_t ElemBytes() const { return SizeOf(context_.dtype()); }
  Linear Part(int64_t first) const {
    Linear part = head_;
    part.weight = static_cast<const std::byte*>(head_.weight) + first * head_.in * ElemBytes();
    part.out = std::min(part_rows_, head_.out - first);
    return part;
  }

  Context& context_;
  const Linear& head_;
  const int64_t chunk_tokens_;
  const int64_t stride_;
  const int64_t part_rows_;
  float* losses_ = nullptr;
  float* logits_ = nullptr;
  std::byte* dlogits_ = nullptr;  // in the operands' type
};

}  // namespace

absl::Status CrossEntropy(Context& context, const Linear& head, const void* x,
                          const int32_t* targets, int64_t tokens, const LossChunks& chunks,
                          const LossGradients& gradients, double* loss_sum) {
  ChunkedLoss loss(context, head, tokens, chunks, tokens, gradients.dx != nullptr);
  for (int64_t first = 0; first < tokens; first += loss.chunk_tokens()) {
    const int64_t rows = std::min(loss.chunk_tokens(), tokens - first);
    const std::byte* const of_x = loss.RowsOf(x, first);
    for (int64_t part = 0; part < head.out; part += loss.part_rows()) {
      FOREBAY_RETURN_IF_ERROR(loss.MakeLogits(of_x, rows, part));
    }
    float* const log_sum_exp =
        gradients.log_sum_exp == nullptr ? nullptr : gradients.log_sum_exp + first;
    FOREBAY_RETURN_IF_ERROR(LossOfRows(context, loss.All(targets + first, rows), gradients.scale,
                                       loss.losses() + first, log_sum_exp, loss.dlogits()));
    if (loss.dlogits() == nullptr) continue;
    auto* const dx = static_cast<std::byte*>(gradients.dx) + (of_x - loss.RowsOf(x, 0));
    FOREBAY_RETURN_IF_ERROR(
        MultiplyBackwardInput(context, head, loss.Gradient(), rows, dx, /*accumulate=*/false));
    if (gradients.dweight == nullptr) continue;
    for (int64_t part = 0; part < head.out; part += loss.part_rows()) {
      FOREBAY_RETURN_IF_ERROR(
          loss.AddToWeight(of_x, rows, part, gradients.dweight + part * head.in));
    }
  }
  return SumInDouble(context, loss.losses(), tokens, loss_sum);
}

absl::Status ProjectionGradient(Context& context, const Linear& head, const void* x,
                                const int32_t* targets, int64_t tokens, const LossChunks& chunks,
                                double scale, const float* log_sum_exp, int64_t first_row,
                                float* dweight) {
  FOREBAY_CHECK(chunks.cut.Cuts(head.out) && first_row % chunks.cut.part_rows == 0);
  FOREBAY_CHECK(first_row >= 0 && first_row < head.out);
  ChunkedLoss loss(context, head, tokens, chunks, /*num_losses=*/0, /*has_gradients=*/true);
  for (int64_t first = 0; first < tokens; first += loss.chunk_tokens()) {
    const int64_t rows = std::min(loss.chunk_tokens(), tokens - first);
    const std::byte* const of_x = loss.RowsOf(x, first);
    FOREBAY_RETURN_IF_ERROR(loss.MakeLogits(of_x, rows, first_row));
    FOREBAY_RETURN_IF_ERROR(
        loss.MakeGradientsOfPart(targets + first, rows, scale, log_sum_exp + first, first_row));
    FOREBAY_RETURN_IF_ERROR(loss.AddToWeight(of_x, rows, first_row, dweight));
  }
  return absl::OkStatus();
}

absl::Status CrossEntropyForward(Context& context, const Linear& head, const void* x,
                                 const int32_t* targets, int64_t tokens, double* loss_sum) {
  return CrossEntropy(context, head, x, targets, tokens, LossChunks(), {}, loss_sum);
}

absl::Status CrossEntropyForwardBackward(Context& context, const Linear& head, const void* x,
                                         const int32_t* targets, int64_t tokens, double scale,
                                         double* loss_sum, void* dx, float* dweight) {
  FOREBAY_CHECK(dx != nullptr && dweight != nullptr);
  return CrossEntropy(context, head, x, targets, tokens, LossChunks(),
                      {.scale = scale, .dx = dx, .dweight = dweight}, loss_sum);
}

absl::Status CrossEntropyForwardBackwardInput(Context& context, const Linear& head, const void* x,
                                              const int32_t* targets, int64_t tokens, double scale,
                                              double* loss_sum, void* dx, float* log_sum_exp) {
  FOREBAY_CHECK(dx != nullptr && log_sum_exp != nullptr);
  return CrossEntropy(context, head, x, targets, tokens, LossChunks(),
                      {.scale = scale, .dx = dx, .log_sum_exp = log_sum_exp}, loss_sum);
}

absl::Status ProjectionGradient(Context& context, const Linear& head, const void* x,
                                const int32_t* targets, int64_t tokens, double scale,
                                const float* log_sum_exp, int64_t first_row, float* dweight) {
  return ProjectionGradient(context, head, x, targets, tokens, LossChunks(), scale, log_sum_exp,
                            first_row, dweight);
}

absl::Status Logits(Context& context, const Linear& head, const void* x, int64_t rows,
                    float* logits) {
  FOREBAY_CHECK(head.bias == nullptr);
  return MultiplyForward(context, head, x, rows, {.rows = logits, .dtype = DType::kF32});
}

}  // namespace forebay::cuda
