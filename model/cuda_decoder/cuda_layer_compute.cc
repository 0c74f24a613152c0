#include "forebay/model/cuda_decoder/cuda_layer_compute.h"

#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"
#include "forebay/model/decoder_compute.h"

namespace forebay {

CudaLayerCompute::CudaLayerCompute(const DecoderConfig& config, const CudaDecoderOptions& options)
    : config_(config),
      options_(options),
      inventory_(BuildInventory(config)),
      tensors_(ResolveTensors(config, inventory_)),
      layout_(config, options),
      kept_in_slot_(static_cast<size_t>(inventory_.num_layers()), -1) {}

std::span<float> CudaLayerCompute::Gradient(int layer) {
  const DeviceAllocation& memory = PlaceOf(layer).memory;
  const int64_t elems = inventory_.layers()[layer].num_elems;
  FOREBAY_CHECK(elems * static_cast<int64_t>(sizeof(float)) <= memory.size_bytes());
  return {reinterpret_cast<float*>(memory.address()), static_cast<size_t>(elems)};
}

absl::Status CudaLayerCompute::ZeroGradient(int layer) {
  return Zero(PlaceOf(layer), Gradient(layer), layer);
}

absl::Status CudaLayerCompute::Zero(GradientPlace& place, std::span<float> gradient, int layer) {
  FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*place.is_taken));
  const StreamScope scope(*stream_, "clear the gradient", {.layer = layer});
  return stream_->Fill(gradient.data(), std::byte{0}, static_cast<int64_t>(gradient.size_bytes()));
}

absl::StatusOr<LayerWeights> CudaLayerCompute::Use(int layer, const HeldWeights& held) {
  const LayerWeights& weights = held.Of(layer);
  FOREBAY_CHECK(weights.device == DeviceKind::kCuda && weights.dtype == options_.dtype);
  if (weights.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*weights.ready));
  return weights;
}

absl::StatusOr<CudaLayerCompute::HeadWeights> CudaLayerCompute::UseHead(int layer,
                                                                        const HeldWeights& held) {
  HeadWeights weights;
  FOREBAY_ASSIGN_OR_RETURN(weights.head, Use(layer, held));
  LayerWeights of_projection = weights.head;
  if (config_.tied_embeddings) {
    FOREBAY_ASSIGN_OR_RETURN(of_projection, Use(EmbedLayer(), held));
  }
  weights.projection = tensors_.projection.View(of_projection);
  return weights;
}

// ---- A pass -------------------------------------------------------------------------------------

absl::Status CudaLayerCompute::BeginPass(std::span<const MicroBatch> batches,
                                         double gradient_scale) {
  FOREBAY_CHECK(!batches.empty() && std::ssize(batches) <= options_.num_batches);
  num_batches_ = batches.size();
  gradient_scale_ = gradient_scale;
  first_token_.assign(1, 0);
  for (const MicroBatch& batch : batches) {
    FOREBAY_CHECK(std::ssize(batch.tokens) <= options_.max_tokens);
    first_token_.push_back(first_token_.back() + std::ssize(batch.tokens));
  }
  FOREBAY_CHECK(first_token_.back() <= options_.step_tokens);
  slot_ = 0;
  num_kept_ = 0;
  std::ranges::fill(kept_in_slot_, -1);
  const StreamScope scope(*stream_, "tokens");
  return batches_->Upload(batches, config_.rope, *stream_);
}

absl::Status CudaLayerCompute::Embed(const LayerWeights& weights, size_t batch) {
  const DeviceBatch& tokens = (*batches_)[batch];
  std::byte* const x = Activation(slot_, batch);
  FOREBAY_RETURN_IF_ERROR(
      cuda::EmbeddingForward(*context_, ElementOf(weights, tensors_.token_embedding), tokens.token,
                             tokens.tokens, config_.hidden_size, x, /*accumulate=*/false));
  if (config_.positions != PositionKind::kLearned) return absl::OkStatus();
  return cuda::EmbeddingForward(*context_, ElementOf(weights, tensors_.position_embedding),
                                tokens.position, tokens.tokens, config_.hidden_size, x,
                                /*accumulate=*/true);
}

absl::Status CudaLayerCompute::Forward(int layer, const HeldWeights& held, size_t batch) {
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, Use(layer, held));
  const StreamScope scope(*stream_, "forward", ScopeOf(layer, batch));
  slot_ = num_kept_ % activations_->num_buffers();
  if (layer == EmbedLayer()) {
    FOREBAY_RETURN_IF_ERROR(Embed(weights, batch));
    return EndUse(layer);
  }
  const int input_slot = kept_in_slot_[layer - 1];
  std::byte* const out = Activation(slot_, batch);
  const std::byte* const x = input_slot >= 0 ? Activation(input_slot, batch) : out;
  const int block = layer - BlockLayer(0);
  FOREBAY_RETURN_IF_ERROR(
      block_->Forward(block, tensors_.blocks[block], weights, (*batches_)[batch], x, out));
  return EndUse(layer);
}

absl::Status CudaLayerCompute::Normed(const LayerWeights& head, size_t batch, void* normed) {
  return block_->Normalize(tensors_.final_norm, head, Activation(slot_, batch),
                           (*batches_)[batch].tokens, config_.hidden_size, normed,
                           workspace_.attention_statistics);
}

absl::Status CudaLayerCompute::FetchLoss(size_t batch) {
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(
      std::as_writable_bytes(host_loss_sums_.As<double>().subspan(batch, 1)), LossSum(batch)));
  return stream_->Record(*losses_are_there_);
}

absl::Status CudaLayerCompute::Loss(int layer, const HeldWeights& held, size_t batch) {
  FOREBAY_ASSIGN_OR_RETURN(const HeadWeights weights, UseHead(layer, held));
  const StreamScope scope(*stream_, "loss", ScopeOf(layer, batch));
  const DeviceBatch& tokens = (*batches_)[batch];
  FOREBAY_RETURN_IF_ERROR(Normed(weights.head, batch, workspace_.normed));
  FOREBAY_RETURN_IF_ERROR(cuda::CrossEntropyForward(*context_, weights.projection,
                                                    workspace_.normed, tokens.target, tokens.tokens,
                                                    LossSum(batch)));
  FOREBAY_RETURN_IF_ERROR(EndHeadUse(layer));
  return FetchLoss(batch);
}

absl::Status CudaLayerCompute::LossAndInputGradient(int layer, const HeadWeights& weights,
                                                    size_t batch) {
  if (batch == 0) FOREBAY_RETURN_IF_ERROR(Zero(small_gradient_, SmallGradient(), layer));
  const StreamScope scope(*stream_, "loss", ScopeOf(layer, batch));
  const DeviceBatch& tokens = (*batches_)[batch];
  void* const d_normed = workspace_.residual;
  FOREBAY_RETURN_IF_ERROR(Normed(weights.head, batch, ProjectionInput(batch)));
  FOREBAY_RETURN_IF_ERROR(cuda::CrossEntropyForwardBackwardInput(
      *context_, weights.projection, ProjectionInput(batch), tokens.target, tokens.tokens,
      gradient_scale_, LossSum(batch), d_normed, LogSums(batch)));
  const int64_t small_begin = inventory_.layers()[layer].small_begin;
  FOREBAY_RETURN_IF_ERROR(block_->NormalizeBackward(
      tensors_.final_norm, weights.head, Activation(slot_, batch), workspace_.attention_statistics,
      d_normed, tokens.tokens, config_.hidden_size, ActivationGradient(batch), /*accumulate=*/false,
      SmallGradient(), small_begin));
  FOREBAY_RETURN_IF_ERROR(EndHeadUse(layer));
  return FetchLoss(batch);
}

absl::Status CudaLayerCompute::LossAndGradient(int layer, const HeldWeights& held, size_t batch) {
  if (options_.vocabulary_in_parts) {
    FOREBAY_ASSIGN_OR_RETURN(const HeadWeights weights, UseHead(layer, held));
    return LossAndInputGradient(layer, weights, batch);
  }
  const bool tied = config_.tied_embeddings;
  if (batch == 0) {
    FOREBAY_RETURN_IF_ERROR(ZeroGradient(layer));
    if (tied) FOREBAY_RETURN_IF_ERROR(ZeroGradient(EmbedLayer()));
  }
  FOREBAY_ASSIGN_OR_RETURN(const HeadWeights weights, UseHead(layer, held));
  const StreamScope scope(*stream_, "loss", ScopeOf(layer, batch));
  const DeviceBatch& tokens = (*batches_)[batch];
  const std::span<float> gradient = Gradient(layer);
  const std::span<float> of_projection = tied ? Gradient(EmbedLayer()) : gradient;
  void* const d_normed = workspace_.residual;
  FOREBAY_RETURN_IF_ERROR(Normed(weights.head, batch, workspace_.normed));
  FOREBAY_RETURN_IF_ERROR(cuda::CrossEntropyForwardBackward(
      *context_, weights.projection, workspace_.normed, tokens.target, tokens.tokens,
      gradient_scale_, LossSum(batch), d_normed,
      ElementOf(of_projection, tensors_.projection.weight)));
  FOREBAY_RETURN_IF_ERROR(block_->NormalizeBackward(
      tensors_.final_norm, weights.head, Activation(slot_, batch), workspace_.attention_statistics,
      d_normed, tokens.tokens, config_.hidden_size, ActivationGradient(batch), /*accumulate=*/false,
      gradient));
  FOREBAY_RETURN_IF_ERROR(EndHeadUse(layer));
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*gradient_is_complete_));
  return FetchLoss(batch);
}

absl::Status CudaLayerCompute::Recompute(int layer, const HeldWeights& held, size_t batch) {
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, Use(layer, held));
  const StreamScope scope(*stream_, "recompute", ScopeOf(layer, batch));
  const int block = layer - BlockLayer(0);
  return block_->Recompute(block, tensors_.blocks[block], weights, (*batches_)[batch],
                           Activation(kept_in_slot_[layer - 1], batch));
}

absl::Status CudaLayerCompute::BackwardEmbed(size_t batch) {
  const StreamScope scope(*stream_, "backward", ScopeOf(EmbedLayer(), batch));
  const DeviceBatch& tokens = (*batches_)[batch];
  const std::span<float> gradient = Gradient(EmbedLayer());
  const std::byte* const dx = ActivationGradient(batch);
  FOREBAY_RETURN_IF_ERROR(cuda::EmbeddingBackward(*context_, tokens.token, tokens.token_runs,
                                                  config_.hidden_size, dx,
                                                  ElementOf(gradient, tensors_.token_embedding)));
  if (config_.positions == PositionKind::kLearned) {
    FOREBAY_RETURN_IF_ERROR(cuda::EmbeddingBackward(
        *context_, tokens.position, tokens.position_runs, config_.hidden_size, dx,
        ElementOf(gradient, tensors_.position_embedding)));
  }
  return stream_->Record(*gradient_is_complete_);
}

absl::Status CudaLayerCompute::Backward(int layer, const HeldWeights& held, size_t batch) {
  const bool is_embedding = layer == EmbedLayer();
  if (is_embedding && options_.vocabulary_in_parts) return absl::OkStatus();
  // The tied embedding's gradients hold already what the output projection gave them.
  if (batch == 0 && !(is_embedding && config_.tied_embeddings)) {
    FOREBAY_RETURN_IF_ERROR(ZeroGradient(layer));
  }
  if (is_embedding) return BackwardEmbed(batch);
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, Use(layer, held));
  const StreamScope scope(*stream_, "backward", ScopeOf(layer, batch));
  const int block = layer - BlockLayer(0);
  FOREBAY_RETURN_IF_ERROR(block_->Backward(
      block, tensors_.blocks[block], weights, (*batches_)[batch],
      Activation(kept_in_slot_[layer - 1], batch), ActivationGradient(batch), Gradient(layer)));
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*gradient_is_complete_));
  return EndUse(layer);
}

void CudaLayerCompute::Keep(int layer) {
  kept_in_slot_[layer] = slot_;
  ++num_kept_;
}

void CudaLayerCompute::Drop(int layer) {
  FOREBAY_CHECK(kept_in_slot_[layer] >= 0);
  kept_in_slot_[layer] = -1;
  --num_kept_;
}

LayerGradient CudaLayerCompute::OnDevice(int layer, const GradientPlace& place,
                                         std::span<const float> elems, int64_t first_elem) const {
  return {.layer = layer,
          .bytes = std::as_bytes(elems),
          .first_elem = first_elem,
          .device = DeviceKind::kCuda,
          .ready = gradient_is_complete_.get(),
          .taken = place.is_taken.get()};
}

absl::StatusOr<LayerGradient> CudaLayerCompute::PartIn(int layer, const GradientPlace& place,
                                                       std::span<const float> elems,
                                                       int64_t first_elem) {
  FOREBAY_RETURN_IF_ERROR(stream_->Record(*gradient_is_complete_));
  return OnDevice(layer, place, elems, first_elem);
}

// The rows are those of the one table, which begins the layer.
absl::Status CudaLayerCompute::AddRows(int layer, const HeldWeights& held, int64_t first_row,
                                       std::span<float> rows) {
  const bool is_embedding = layer == EmbedLayer();
  const bool is_projection = !is_embedding || config_.tied_embeddings;
  const StreamScope scope(*stream_, "gradient in parts", {.layer = layer});
  if (is_projection) {
    FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, Use(layer, held));
    const Linear projection = tensors_.projection.View(weights);
    for (size_t batch = 0; batch < num_batches_; ++batch) {
      const DeviceBatch& tokens = (*batches_)[batch];
      FOREBAY_RETURN_IF_ERROR(cuda::ProjectionGradient(
          *context_, projection, ProjectionInput(batch), tokens.target, tokens.tokens,
          gradient_scale_, LogSums(batch), first_row, rows.data()));
    }
    FOREBAY_RETURN_IF_ERROR(EndUse(layer));
  }
  for (size_t batch = 0; is_embedding && batch < num_batches_; ++batch) {
    const DeviceBatch& tokens = (*batches_)[batch];
    FOREBAY_RETURN_IF_ERROR(cuda::EmbeddingBackwardOfRows(
        *context_, tokens.token, tokens.token_runs, config_.hidden_size, ActivationGradient(batch),
        first_row, std::ssize(rows) / config_.hidden_size, rows.data()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<LayerGradient>> CudaLayerCompute::GradientFrom(int layer,
                                                                            const HeldWeights& held,
                                                                            int64_t first_elem) {
  const LayerSpec& spec = inventory_.layers()[layer];
  if (first_elem == spec.num_elems) return std::nullopt;
  const bool is_apart = layer == EmbedLayer() || layer == HeadLayer(config_);
  const std::optional<VocabularyPart> part = options_.vocabulary_in_parts && is_apart
                                                 ? VocabularyPartAt(config_, spec, first_elem)
                                                 : std::nullopt;
  if (!part.has_value()) return OnDevice(layer, PlaceOf(layer), Gradient(layer), 0);
  if (part->IsOfSmallTensors()) return PartIn(layer, small_gradient_, SmallGradient(), first_elem);
  const std::span<float> gradient(reinterpret_cast<float*>(large_gradient_.memory.address()),
                                  static_cast<size_t>(part->num_elems));
  FOREBAY_RETURN_IF_ERROR(Zero(large_gradient_, gradient, layer));
  const auto num_elems = static_cast<size_t>(part->num_rows * config_.hidden_size);
  FOREBAY_RETURN_IF_ERROR(AddRows(layer, held, part->first_row, gradient.first(num_elems)));
  return PartIn(layer, large_gradient_, gradient, first_elem);
}

absl::StatusOr<double> CudaLayerCompute::LossSumOf(size_t batch) {
  FOREBAY_RETURN_IF_ERROR(losses_are_there_->Await());
  return host_loss_sums_.As<double>()[batch];
}

}  // namespace forebay
