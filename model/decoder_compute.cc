#include "forebay/model/decoder_compute.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"
#include "forebay/base/trace.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay {
namespace {

// On all threads; allocates nothing.
template <typename Work>
void ForPieces(ThreadPool& pool, int64_t count, const Work& work) {
  constexpr int64_t kPieceElems = 1 << 14;
  pool.ParallelFor((count + kPieceElems - 1) / kPieceElems, [&](int64_t piece) {
    const int64_t begin = piece * kPieceElems;
    work(begin, std::min(kPieceElems, count - begin));
  });
}

constexpr int64_t kSmallTensorsAlignBytes = 64;  // as LayerWeights has it

int64_t SmallElemsOfHead(const DecoderConfig& config, const Inventory& inventory) {
  const LayerSpec& head = inventory.layers()[HeadLayer(config)];
  return head.num_elems - head.small_begin;
}

}  // namespace

int64_t LogitSumsBytes(const DecoderConfig& config, int64_t tokens) {
  if (!MayCutVocabulary(config)) return 0;
  return RoundUp(tokens * static_cast<int64_t>(sizeof(cpu::LogitSums)), kSmallTensorsAlignBytes) +
         SmallElemsOfHead(config, BuildInventory(config)) * SizeOf(DType::kF32);
}

DecoderStepMemory StepMemoryFor(const DecoderConfig& config, const Inventory& inventory,
                                int64_t tokens, const BlockRecompute& recompute,
                                DType activations) {
  const auto elems = [&](int layer) { return inventory.layers()[layer].num_elems; };
  const int64_t embedding = elems(EmbedLayer());
  const bool in_parts = recompute.vocabulary_in_parts;
  int64_t layer = in_parts
                      ? MostElemsOfVocabularyPart(config)
                      : std::max(elems(HeadLayer(config)), config.tied_embeddings ? 0 : embedding);
  for (int i = 0; i < config.num_layers; ++i) layer = std::max(layer, elems(BlockLayer(i)));
  int64_t saved_bytes = 0;
  for (int i = 0; i < config.num_layers; ++i) {
    saved_bytes += SavedBytes(config, recompute.Of(i), tokens);
  }
  const int num_activations = NumActivationBuffers(ChainOf(config, recompute));
  const bool is_apart = config.tied_embeddings && !in_parts;
  return {
      .checkpoint_bytes = num_activations * ForwardBytes(config, tokens, activations),
      .activation_gradient_bytes = ForwardBytes(config, tokens),
      .layer_gradient_bytes = layer * 4,
      .embedding_gradient_bytes = is_apart ? embedding * 4 : 0,
      .saved_bytes = saved_bytes,
      .projection_input_bytes = in_parts ? ForwardBytes(config, tokens) : 0,
      .log_sum_exp_bytes = in_parts ? tokens * 4 : 0,
      .small_gradient_bytes = in_parts ? SmallElemsOfHead(config, inventory) * 4 : 0,
      .logit_sums_bytes =
          recompute.vocabulary_in_pieces ? LogitSumsBytes(config, num_activations * tokens) : 0,
  };
}

Chain ChainOf(const DecoderConfig& config, const BlockRecompute& recompute) {
  Chain chain = {.num_layers = config.num_layers + 2, .loss_reads_first = config.tied_embeddings};
  for (int i = 0; i < config.num_layers; ++i) {
    chain.num_saving += recompute.Of(i) == Recompute::kAll ? 0 : 1;
  }
  chain.segment_layers = recompute.segment_blocks;
  chain.ends_in_parts = recompute.vocabulary_in_parts;
  return chain;
}

DecoderCompute::DecoderCompute(Decoder* decoder, DType activations)
    : decoder_(decoder),
      config_(decoder->config()),
      dtype_(activations),
      kept_in_slot_(static_cast<size_t>(decoder->inventory().num_layers()), -1),
      is_saved_(kept_in_slot_.size()) {}

absl::StatusOr<std::unique_ptr<DecoderCompute>> DecoderCompute::CreateForTraining(
    Decoder* decoder, int64_t tokens, MemoryBudget* budget, ActivationStorage* storage,
    const BlockRecompute& recompute, DType activations) {
  FOREBAY_CHECK(activations == DType::kF32 || activations == DType::kBF16);
  const DecoderStepMemory memory =
      StepMemoryFor(decoder->config(), decoder->inventory(), tokens, recompute, activations);
  std::unique_ptr<DecoderCompute> compute(new DecoderCompute(decoder, activations));
  if (activations != DType::kF32) {
    const int64_t micro_batch_tokens = decoder->options().max_tokens;
    FOREBAY_ASSIGN_OR_RETURN(
        compute->wide_, HostBuffer::Create(budget, kWidePurpose,
                                           WideActivationBytes(decoder->config(),
                                                               micro_batch_tokens, activations)));
  }
  if (storage != nullptr) {
    compute->SetActivations(storage->buffers(), storage->num_buffers());
    compute->slots_are_shared_ = true;
  } else {
    FOREBAY_ASSIGN_OR_RETURN(
        compute->own_activations_,
        HostBuffer::Create(budget, "activation checkpoints", memory.checkpoint_bytes));
    compute->SetActivations(compute->own_activations_.bytes(),
                            NumActivationBuffers(ChainOf(decoder->config(), recompute)));
  }
  FOREBAY_ASSIGN_OR_RETURN(
      compute->activation_gradient_,
      HostBuffer::Create(budget, "activation gradients", memory.activation_gradient_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      compute->layer_gradient_,
      HostBuffer::Create(budget, kLayerGradientPurpose, memory.layer_gradient_bytes));
  if (memory.embedding_gradient_bytes > 0) {
    FOREBAY_ASSIGN_OR_RETURN(
        compute->embedding_gradient_,
        HostBuffer::Create(budget, kEmbeddingGradientPurpose, memory.embedding_gradient_bytes));
  }
  if (memory.projection_input_bytes > 0) {
    FOREBAY_CHECK(MayCutVocabulary(decoder->config()));
    for (const auto& [buffer, bytes] :
         {std::pair(&compute->projection_inputs_, memory.projection_input_bytes),
          std::pair(&compute->log_sum_exp_, memory.log_sum_exp_bytes),
          std::pair(&compute->small_gradient_, memory.small_gradient_bytes),
          std::pair(&compute->logit_sums_, memory.logit_sums_bytes)}) {
      FOREBAY_ASSIGN_OR_RETURN(*buffer, HostBuffer::Create(budget, kProjectionPurpose, bytes));
    }
  }
  if (memory.saved_bytes == 0) return compute;
  FOREBAY_ASSIGN_OR_RETURN(compute->saved_,
                           HostBuffer::Create(budget, kSavedPurpose, memory.saved_bytes));
  compute->recompute_ = recompute;
  compute->most_saved_tokens_ = tokens;
  int64_t begin = 0;
  for (int i = 0; i < decoder->config().num_layers; ++i) {
    compute->saved_begin_.push_back(begin);
    begin += SavedBytes(decoder->config(), recompute.Of(i), tokens);
  }
  return compute;
}

absl::StatusOr<std::unique_ptr<DecoderCompute>> DecoderCompute::CreateForEvaluation(
    Decoder* decoder, int64_t tokens, MemoryBudget* budget) {
  std::unique_ptr<DecoderCompute> compute(new DecoderCompute(decoder, DType::kF32));
  FOREBAY_ASSIGN_OR_RETURN(
      compute->own_activations_,
      HostBuffer::Create(budget, "activations", ForwardBytes(decoder->config(), tokens)));
  if (MayCutVocabulary(decoder->config())) {
    FOREBAY_ASSIGN_OR_RETURN(
        compute->logit_sums_,
        HostBuffer::Create(budget, kProjectionPurpose, LogitSumsBytes(decoder->config(), tokens)));
  }
  compute->SetActivations(compute->own_activations_.bytes(), /*num_slots=*/1);
  return compute;
}

void DecoderCompute::SetActivations(std::span<std::byte> memory, int num_slots) {
  activations_ = memory;
  num_slots_ = num_slots;
  slot_bytes_ = std::ssize(activations_) / num_slots;
}

int64_t DecoderCompute::most_forward_tokens() const {
  const int64_t tokens = std::ssize(activations_) / ForwardBytes(config_, 1, dtype_);
  // Buffers of activations that are spilled may have room for some more.
  return logit_sums_.size_bytes() == 0 ? tokens : std::min(tokens, num_logit_sums());
}

int64_t DecoderCompute::small_tensor_bytes() const {
  return SmallElemsOfHead(config_, decoder_->inventory()) * SizeOf(DType::kF32);
}

int64_t DecoderCompute::num_logit_sums() const {
  const int64_t bytes = logit_sums_.size_bytes() - small_tensor_bytes();
  return bytes / static_cast<int64_t>(sizeof(cpu::LogitSums));
}

absl::Status DecoderCompute::BeginPass(std::span<const MicroBatch> batches, double gradient_scale) {
  FOREBAY_CHECK(!batches.empty());
  batches_ = batches;
  gradient_scale_ = gradient_scale;
  first_token_.assign(1, 0);
  for (const MicroBatch& batch : batches) {
    first_token_.push_back(first_token_.back() + static_cast<int64_t>(batch.tokens.size()));
  }
  FOREBAY_CHECK(first_token_.back() <= most_forward_tokens());
  loss_sums_.assign(batches.size(), 0);
  slot_ = 0;
  std::ranges::fill(kept_in_slot_, -1);
  std::ranges::fill(is_saved_, uint8_t{0});
  return absl::OkStatus();
}

std::span<std::byte> DecoderCompute::Activation(int slot, size_t batch) const {
  FOREBAY_CHECK(slot >= 0 && slot < num_slots_);
  const int64_t begin = ForwardBytes(config_, first_token_[batch], dtype_);
  const int64_t end = ForwardBytes(config_, first_token_[batch + 1], dtype_);
  return activations_.subspan(slot * slot_bytes_ + begin, end - begin);
}

std::span<float> DecoderCompute::Room(int slot, size_t batch) const {
  const std::span<std::byte> activation = Activation(slot, batch);
  const size_t count = activation.size() / static_cast<size_t>(SizeOf(dtype_));
  if (dtype_ == DType::kF32) return {reinterpret_cast<float*>(activation.data()), count};
  FOREBAY_CHECK(count <= wide_.As<float>().size());
  return wide_.As<float>().first(count);
}

std::span<float> DecoderCompute::Wide(int slot, size_t batch) const {
  const std::span<float> wide = Room(slot, batch);
  if (dtype_ == DType::kF32) return wide;
  const auto* const narrow = reinterpret_cast<const Bf16*>(Activation(slot, batch).data());
  ForPieces(decoder_->context().pool(), std::ssize(wide), [&](int64_t begin, int64_t count) {
    cpu::kernels::Widen(narrow + begin, DType::kBF16, count, wide.data() + begin);
  });
  return wide;
}

void DecoderCompute::Put(std::span<const float> activation, int slot, size_t batch) const {
  if (dtype_ == DType::kF32) return;  // it was computed there
  auto* const narrow = reinterpret_cast<Bf16*>(Activation(slot, batch).data());
  ForPieces(decoder_->context().pool(), std::ssize(activation), [&](int64_t begin, int64_t count) {
    cpu::kernels::NarrowToBf16(activation.data() + begin, count, narrow + begin);
  });
}

std::span<float> DecoderCompute::ActivationGradient(size_t batch) const {
  const int64_t hidden = config_.hidden_size;
  FOREBAY_CHECK(ForwardBytes(config_, first_token_.back()) <= activation_gradient_.size_bytes());
  return activation_gradient_.As<float>().subspan(
      first_token_[batch] * hidden, (first_token_[batch + 1] - first_token_[batch]) * hidden);
}

std::span<float> DecoderCompute::Gradient(int layer) const {
  const bool is_apart = layer == EmbedLayer() && config_.tied_embeddings;
  const std::span<float> buffer = (is_apart ? embedding_gradient_ : layer_gradient_).As<float>();
  const auto elems = static_cast<size_t>(decoder_->inventory().layers()[layer].num_elems);
  FOREBAY_CHECK(elems <= buffer.size());
  return buffer.first(elems);
}

std::span<float> DecoderCompute::ZeroedGradient(int layer) const {
  const std::span<float> gradient = Gradient(layer);
  std::ranges::fill(gradient, 0.0f);
  return gradient;
}

LayerWeights DecoderCompute::EmbedFor(const HeldWeights& weights) const {
  return config_.tied_embeddings ? weights.Of(EmbedLayer()) : LayerWeights();
}

SavedOfBlock DecoderCompute::SavedOf(int layer, size_t batch) const {
  if (is_saved_[layer] == 0) return {};
  const int block = layer - BlockLayer(0);
  const auto recompute = recompute_.Of(block);
  const int64_t offset = saved_begin_[block] + SavedBytes(config_, recompute, first_token_[batch]);
  return {.recompute = recompute, .memory = saved_.data() + offset};
}

int DecoderCompute::FreeSlot(int layer) const {
  if (slots_are_shared_) return layer % num_slots_;
  int slot = 0;
  while (std::ranges::find(kept_in_slot_, slot) != kept_in_slot_.end()) ++slot;
  return slot;
}

absl::Status DecoderCompute::Forward(int layer, const HeldWeights& weights, size_t batch) {
  if (layer == EmbedLayer()) {
    if (WeightPieces* const pieces = weights.Of(layer).pieces; pieces != nullptr) {
      return batch == 0 ? EmbedPieces(*pieces) : absl::OkStatus();
    }
    const std::span<float> output = Room(slot_, batch);
    decoder_->Embed(weights.Of(layer), batches_[batch], output);
    Put(output, slot_, batch);
    return absl::OkStatus();
  }
  const int input_slot = kept_in_slot_[layer - 1] >= 0 ? kept_in_slot_[layer - 1] : slot_;
  if (batch == 0 && kept_in_slot_[layer - 1] >= 0) slot_ = FreeSlot(layer);
  // It is computed in place, and what is kept stays.
  std::span<float> output = Wide(input_slot, batch);
  if (dtype_ == DType::kF32 && input_slot != slot_) {
    const std::span<float> input = std::exchange(output, Room(slot_, batch));
    std::memcpy(output.data(), input.data(), output.size_bytes());
  }
  decoder_->ForwardBlock(layer - BlockLayer(0), weights.Of(layer), batches_[batch], output,
                         SavedOf(layer, batch));
  Put(output, slot_, batch);
  return absl::OkStatus();
}

absl::Status DecoderCompute::Loss(int layer, const HeldWeights& weights, size_t batch) {
  if (TableOf(layer, weights) != nullptr) {
    return batch == 0 ? LossInPieces(layer, weights) : absl::OkStatus();
  }
  loss_sums_[batch] =
      decoder_->Loss(weights.Of(layer), EmbedFor(weights), batches_[batch], Wide(slot_, batch))
          .loss_sum;
  return absl::OkStatus();
}

ProjectionInputs DecoderCompute::ProjectionInputsOf(size_t batch) const {
  const auto first = static_cast<size_t>(first_token_[batch]);
  const size_t tokens = batches_[batch].tokens.size();
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  FOREBAY_CHECK(first + tokens <= log_sum_exp_.As<float>().size());
  return {.normed = projection_inputs_.As<float>().subspan(first * hidden, tokens * hidden),
          .log_sum_exp = log_sum_exp_.As<float>().subspan(first, tokens)};
}

absl::Status DecoderCompute::LossAndGradient(int layer, const HeldWeights& weights, size_t batch) {
  if (TableOf(layer, weights) != nullptr) {
    return batch == 0 ? LossAndGradientInPieces(layer, weights) : absl::OkStatus();
  }
  if (vocabulary_in_parts()) {
    const std::span<float> small_gradient = small_gradient_.As<float>();
    if (batch == 0) std::ranges::fill(small_gradient, 0.0f);
    loss_sums_[batch] =
        decoder_
            ->LossAndInputGradient(weights.Of(layer), EmbedFor(weights), batches_[batch],
                                   Wide(slot_, batch), gradient_scale_, ActivationGradient(batch),
                                   small_gradient, ProjectionInputsOf(batch))
            .loss_sum;
    return absl::OkStatus();
  }
  if (batch == 0) {
    ZeroedGradient(layer);
    if (config_.tied_embeddings) ZeroedGradient(EmbedLayer());
  }
  loss_sums_[batch] =
      decoder_
          ->LossAndGradient(weights.Of(layer), EmbedFor(weights), batches_[batch],
                            Wide(slot_, batch), gradient_scale_, ActivationGradient(batch),
                            Gradient(layer),
                            config_.tied_embeddings ? Gradient(EmbedLayer()) : std::span<float>())
          .loss_sum;
  return absl::OkStatus();
}

absl::Status DecoderCompute::Recompute(int layer, const HeldWeights& weights, size_t batch) {
  decoder_->RecomputeBlock(layer - BlockLayer(0), weights.Of(layer), batches_[batch],
                           Wide(kept_in_slot_[layer - 1], batch), SavedOf(layer, batch));
  return absl::OkStatus();
}

absl::Status DecoderCompute::Backward(int layer, const HeldWeights& weights, size_t batch) {
  if (layer == EmbedLayer() && vocabulary_in_parts()) return absl::OkStatus();
  if (layer == EmbedLayer()) {
    // The tied embedding's gradients hold already what the output projection gave them.
    if (batch == 0 && !config_.tied_embeddings) ZeroedGradient(layer);
    decoder_->BackwardEmbed(batches_[batch], ActivationGradient(batch), Gradient(layer));
    return absl::OkStatus();
  }
  if (batch == 0) ZeroedGradient(layer);
  decoder_->BackwardBlock(layer - BlockLayer(0), weights.Of(layer), batches_[batch],
                          Wide(kept_in_slot_[layer - 1], batch), ActivationGradient(batch),
                          Gradient(layer), SavedOf(layer, batch));
  return absl::OkStatus();
}

void DecoderCompute::Save(int layer) {
  FOREBAY_CHECK(recompute_.Of(layer - BlockLayer(0)) != Recompute::kAll);
  FOREBAY_CHECK(first_token_.back() <= most_saved_tokens_);
  is_saved_[layer] = 1;
}

void DecoderCompute::Keep(int layer) {
  FOREBAY_CHECK(!slots_are_shared_ || slot_ == layer % num_slots_);
  FOREBAY_CHECK(ForwardBytes(config_, first_token_.back(), dtype_) <= slot_bytes_);
  kept_in_slot_[layer] = slot_;
}

void DecoderCompute::Drop(int layer) {
  FOREBAY_CHECK(kept_in_slot_[layer] >= 0);
  kept_in_slot_[layer] = -1;
}

absl::StatusOr<std::optional<LayerGradient>> DecoderCompute::GradientFrom(
    int layer, const HeldWeights& weights, int64_t first_elem) {
  const LayerSpec& spec = decoder_->inventory().layers()[layer];
  if (first_elem == spec.num_elems) return std::nullopt;
  const bool is_embedding = layer == EmbedLayer();
  if (!vocabulary_in_parts() || (!is_embedding && layer != HeadLayer(config_))) {
    return Fp32Gradient(layer, Gradient(layer));
  }
  const TraceScope trace("gradient in parts", {.layer = layer});
  const std::optional<VocabularyPart> part = VocabularyPartAt(config_, spec, first_elem);
  if (!part.has_value()) return Fp32Gradient(layer, Gradient(layer));
  if (part->IsOfSmallTensors()) {
    return Fp32Gradient(layer, small_gradient_.As<float>(), first_elem);
  }
  const int64_t first_row = part->first_row;
  const std::span<float> gradient =
      layer_gradient_.As<float>().first(static_cast<size_t>(part->num_elems));
  std::ranges::fill(gradient, 0.0f);
  const std::span<float> rows =
      gradient.first(static_cast<size_t>(part->num_rows * config_.hidden_size));
  if (!is_embedding || config_.tied_embeddings) {
    LayerWeights table = weights.Of(layer);
    if (table.pieces != nullptr) {
      const auto piece = static_cast<int>(first_elem / table.pieces->piece_elems());
      FOREBAY_ASSIGN_OR_RETURN(table, table.pieces->Get(piece));
    }
    for (size_t batch = 0; batch < batches_.size(); ++batch) {
      decoder_->AddProjectionGradient(table, batches_[batch], ProjectionInputsOf(batch),
                                      gradient_scale_, first_row, rows);
    }
  }
  for (size_t batch = 0; is_embedding && batch < batches_.size(); ++batch) {
    decoder_->BackwardEmbedRows(batches_[batch], ActivationGradient(batch), first_row, rows);
  }
  return Fp32Gradient(layer, gradient, first_elem);
}

}  // namespace forebay
