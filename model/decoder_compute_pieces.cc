// Layers that are lent in pieces. Each pass over the pieces is for all micro-batches together, so
// that it is read once for all of them.
#include <algorithm>
#include <cstring>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_tensors.h"

namespace forebay {

template <typename Call>
absl::Status DecoderCompute::ForEachPiece(WeightPieces& pieces, const Call& call) const {
  const int64_t table_elems = config_.vocab_size * config_.hidden_size;
  for (int piece = 0; piece < pieces.num_pieces(); ++piece) {
    FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, pieces.Get(piece));
    if (weights.first_elem >= table_elems) break;  // it has small tensors alone
    for (size_t batch = 0; batch < batches_.size(); ++batch) call(weights, batch);
  }
  return absl::OkStatus();
}

WeightPieces* DecoderCompute::TableOf(int layer, const HeldWeights& weights) const {
  return weights.Of(config_.tied_embeddings ? EmbedLayer() : layer).pieces;
}

absl::StatusOr<LayerWeights> DecoderCompute::TakeSmallTensors(int layer,
                                                              const HeldWeights& weights) {
  const LayerWeights& head = weights.Of(layer);
  if (head.pieces == nullptr) return head;
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights last,
                           head.pieces->Get(head.pieces->num_pieces() - 1));
  const LayerSpec& spec = decoder_->inventory().layers()[layer];
  const auto num_bytes =
      static_cast<size_t>((spec.num_elems - spec.small_begin) * SizeOf(last.dtype));
  const std::span<std::byte> place =
      logit_sums_.bytes().last(static_cast<size_t>(small_tensor_bytes()));
  FOREBAY_CHECK(last.first_elem <= spec.small_begin && num_bytes <= place.size());
  std::memcpy(place.data(), ElementOf(last, spec.small_begin), num_bytes);
  return LayerWeights{
      .dtype = last.dtype, .data = place.first(num_bytes), .first_elem = spec.small_begin};
}

std::span<cpu::LogitSums> DecoderCompute::LogitSumsOf(size_t batch) const {
  const auto all = logit_sums_.As<cpu::LogitSums>().first(static_cast<size_t>(num_logit_sums()));
  const auto first = static_cast<size_t>(first_token_[batch]);
  FOREBAY_CHECK(first + batches_[batch].tokens.size() <= all.size());
  return all.subspan(first, batches_[batch].tokens.size());
}

absl::Status DecoderCompute::EmbedPieces(WeightPieces& pieces) {
  return ForEachPiece(pieces, [&](const LayerWeights& piece, size_t batch) {
    const std::span<float> output = Wide(slot_, batch);
    decoder_->EmbedPiece(piece, batches_[batch], output);
    Put(output, slot_, batch);
  });
}

absl::Status DecoderCompute::LossInPieces(int layer, const HeldWeights& weights) {
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    std::ranges::fill(LogitSumsOf(batch), cpu::LogitSums());
  }
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights small, TakeSmallTensors(layer, weights));
  FOREBAY_RETURN_IF_ERROR(
      ForEachPiece(*TableOf(layer, weights), [&](const LayerWeights& piece, size_t batch) {
        const std::span<const float> normed =
            decoder_->NormalizedForLoss(small, batches_[batch], Wide(slot_, batch));
        decoder_->AddLogitSums(piece, batches_[batch], normed, LogitSumsOf(batch));
      }));
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    loss_sums_[batch] = cpu::CrossEntropyOfSums(LogitSumsOf(batch).data(), batches_[batch].targets,
                                                /*log_sum_exp=*/nullptr)
                            .loss_sum;
  }
  return absl::OkStatus();
}

absl::Status DecoderCompute::LossAndGradientInPieces(int layer, const HeldWeights& weights) {
  FOREBAY_CHECK(vocabulary_in_parts());
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    std::ranges::fill(LogitSumsOf(batch), cpu::LogitSums());
  }
  std::ranges::fill(small_gradient_.As<float>(), 0.0f);
  WeightPieces& table = *TableOf(layer, weights);
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights small, TakeSmallTensors(layer, weights));
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    decoder_->NormalizeForLoss(small, batches_[batch], Wide(slot_, batch),
                               ProjectionInputsOf(batch).normed);
  }
  FOREBAY_RETURN_IF_ERROR(ForEachPiece(table, [&](const LayerWeights& piece, size_t batch) {
    decoder_->AddLogitSums(piece, batches_[batch], ProjectionInputsOf(batch).normed,
                           LogitSumsOf(batch));
  }));
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    loss_sums_[batch] = cpu::CrossEntropyOfSums(LogitSumsOf(batch).data(), batches_[batch].targets,
                                                ProjectionInputsOf(batch).log_sum_exp.data())
                            .loss_sum;
  }
  FOREBAY_RETURN_IF_ERROR(ForEachPiece(table, [&](const LayerWeights& piece, size_t batch) {
    decoder_->AddInputGradient(piece, batches_[batch], ProjectionInputsOf(batch), gradient_scale_,
                               ActivationGradient(batch));
  }));
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    decoder_->BackwardNormForLoss(small, batches_[batch], Wide(slot_, batch),
                                  ActivationGradient(batch), small_gradient_.As<float>());
  }
  return absl::OkStatus();
}

}  // namespace forebay
