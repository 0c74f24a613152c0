// A decoder's large vocabulary part by part: gradients, and the rest too where memory has no room
// for all of the table.
#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_impl.h"

namespace forebay {

// ---- Gradients

void Decoder::BackwardEmbedRows(const MicroBatch& batch, std::span<const float> dx,
                                int64_t first_row, std::span<float> gradient) {
  const int64_t hidden = impl_->config.hidden_size;
  FOREBAY_CHECK(dx.size() == batch.tokens.size() * hidden);
  cpu::EmbeddingBackwardOfRows(impl_->context, batch.tokens, hidden, dx.data(), first_row,
                               std::ssize(gradient) / hidden, gradient.data());
}

cpu::LossResult Decoder::LossAndInputGradient(const LayerWeights& head, const LayerWeights& embed,
                                              const MicroBatch& batch, std::span<const float> x,
                                              double scale, std::span<float> dx,
                                              std::span<float> small_gradient,
                                              const ProjectionInputs& inputs) {
  Impl& impl = *impl_;
  const int64_t tokens = batch.tokens.size();
  const int64_t hidden = impl.config.hidden_size;
  const NormTensors& norm = impl.tensors.final_norm;
  const NormStatistics& statistics = impl.workspace.attention_statistics;
  impl.Normalize(norm, head, x.data(), tokens, hidden, inputs.normed.data(), statistics);
  float* const d_normed = impl.workspace.residual;
  const cpu::LossResult result = cpu::CrossEntropyForwardBackwardInput(
      impl.context, impl.Projection(head, embed), inputs.normed.data(), batch.targets, scale,
      d_normed, inputs.log_sum_exp.data());
  const int64_t small_begin = impl.inventory.layers()[HeadLayer(impl.config)].small_begin;
  impl.NormalizeBackward(norm, head, x.data(), statistics, d_normed, tokens, hidden, dx.data(),
                         /*accumulate=*/false, small_gradient, small_begin);
  return result;
}

cpu::ProjectionPart Decoder::Impl::PartOf(const LayerWeights& weights, int64_t first_row) const {
  return {.head = tensors.projection.View({.dtype = weights.dtype}),
          .rows = ElementOf(weights, tensors.projection.weight + first_row * config.hidden_size),
          .first_row = first_row};
}

void Decoder::AddProjectionGradient(const LayerWeights& weights, const MicroBatch& batch,
                                    const ProjectionInputs& inputs, double scale, int64_t first_row,
                                    std::span<float> gradient) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(std::ssize(gradient) % impl.config.hidden_size == 0);
  cpu::ProjectionGradient(impl.context, impl.PartOf(weights, first_row), inputs.normed.data(),
                          batch.targets, scale, inputs.log_sum_exp.data(), gradient.data());
}

// ---- Pieces of the table

// The table begins its layer (VocabularyPartAt).
int64_t Decoder::Impl::FirstRowOf(const LayerWeights& piece) const {
  FOREBAY_CHECK(piece.first_elem % config.hidden_size == 0);
  return piece.first_elem / config.hidden_size;
}

void Decoder::EmbedPiece(const LayerWeights& piece, const MicroBatch& batch, std::span<float> x) {
  Impl& impl = *impl_;
  const int64_t hidden = impl.config.hidden_size;
  const int64_t first_row = impl.FirstRowOf(piece);
  const int64_t num_elems = std::ssize(piece.data) / SizeOf(piece.dtype);
  FOREBAY_CHECK(x.size() == batch.tokens.size() * hidden);
  FOREBAY_CHECK(impl.config.positions == PositionKind::kRope);
  CheckTokens(batch);
  // Behind the last row there may be other tensors, and no token's row.
  cpu::EmbeddingForwardOfRows(impl.context, piece.data.data(), piece.dtype, batch.tokens, hidden,
                              first_row, num_elems / hidden, x.data());
}

void Decoder::NormalizeForLoss(const LayerWeights& head, const MicroBatch& batch,
                               std::span<const float> x, std::span<float> normed) {
  impl_->Normalize(impl_->tensors.final_norm, head, x.data(), std::ssize(batch.tokens),
                   impl_->config.hidden_size, normed.data(), impl_->workspace.attention_statistics);
}

std::span<const float> Decoder::NormalizedForLoss(const LayerWeights& head, const MicroBatch& batch,
                                                  std::span<const float> x) {
  const std::span<float> normed(impl_->workspace.normed, x.size());
  NormalizeForLoss(head, batch, x, normed);
  return normed;
}

void Decoder::AddLogitSums(const LayerWeights& piece, const MicroBatch& batch,
                           std::span<const float> normed, std::span<cpu::LogitSums> sums) {
  FOREBAY_CHECK(sums.size() == batch.tokens.size());
  cpu::LogitSumsOfPart(impl_->context, impl_->PartOf(piece, impl_->FirstRowOf(piece)),
                       normed.data(), batch.targets, sums.data());
}

void Decoder::AddInputGradient(const LayerWeights& piece, const MicroBatch& batch,
                               const ProjectionInputs& inputs, double scale,
                               std::span<float> d_normed) {
  cpu::InputGradientOfPart(impl_->context, impl_->PartOf(piece, impl_->FirstRowOf(piece)),
                           inputs.normed.data(), batch.targets, scale, inputs.log_sum_exp.data(),
                           d_normed.data());
}

void Decoder::BackwardNormForLoss(const LayerWeights& head, const MicroBatch& batch,
                                  std::span<const float> x, std::span<float> dx,
                                  std::span<float> small_gradient) {
  Impl& impl = *impl_;
  NormalizedForLoss(head, batch, x);  // for its statistics
  const std::span<float> d_normed(impl.workspace.residual, dx.size());
  std::ranges::copy(dx, d_normed.begin());
  impl.NormalizeBackward(impl.tensors.final_norm, head, x.data(),
                         impl.workspace.attention_statistics, d_normed.data(),
                         std::ssize(batch.tokens), impl.config.hidden_size, dx.data(),
                         /*accumulate=*/false, small_gradient,
                         impl.inventory.layers()[HeadLayer(impl.config)].small_begin);
}

}  // namespace forebay
