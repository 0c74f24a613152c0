// A decoder as a pass over layers sees it: Decoder's computation, with the memory in which
// activations and gradients wait between its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/vocabulary_parts.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/step_schedule.h"

namespace forebay {

// Beyond the decoder's workspace, for the planner.
struct DecoderStepMemory {
  // Activations of all micro-batches where none is spilled: NumActivationBuffers * tokens * hidden.
  int64_t checkpoint_bytes = 0;
  int64_t activation_gradient_bytes = 0;  // of all micro-batches, fp32
  // fp32 gradients of one layer: when embeddings are tied of any but the embedding, whose are made
  // while the others' are.
  int64_t layer_gradient_bytes = 0;
  int64_t embedding_gradient_bytes = 0;  // fp32, when embeddings are tied; else 0
  int64_t saved_bytes = 0;               // what blocks save, of all micro-batches
  // With BlockRecompute::vocabulary_in_parts, else 0: the inputs of the output layer and the
  // logarithms of the sums of its logits, of all micro-batches, and the gradient of its small
  // tensors.
  int64_t projection_input_bytes = 0;
  int64_t log_sum_exp_bytes = 0;
  int64_t small_gradient_bytes = 0;
  // With BlockRecompute::vocabulary_in_pieces, else 0: LogitSumsBytes of as many tokens as a pass
  // may have.
  int64_t logit_sums_bytes = 0;
};
// `tokens`: the most, padding included, of all micro-batches of a step together. `activations`:
// their dtype between layers.
DecoderStepMemory StepMemoryFor(const DecoderConfig& config, const Inventory& inventory,
                                int64_t tokens, const BlockRecompute& recompute = {},
                                DType activations = DType::kF32);
// Charged beside it where activations are not fp32: one activation of a micro-batch in fp32.
inline int64_t WideActivationBytes(const DecoderConfig& config, int64_t micro_batch_tokens,
                                   DType activations) {
  return activations == DType::kF32 ? 0 : ForwardBytes(config, micro_batch_tokens);
}

// CreateForEvaluation charges so much beside the activations of so many tokens, for layers that
// come in pieces; in whole pages.
int64_t LogitSumsBytes(const DecoderConfig& config, int64_t tokens);
// Purposes in a MemoryBudget: of the gradients, of `saved_bytes`, of WideActivationBytes, and of
// the four for a vocabulary in parts.
inline constexpr char kLayerGradientPurpose[] = "gradient of one layer (fp32)";
inline constexpr char kEmbeddingGradientPurpose[] = "gradient of the embedding (fp32)";
inline constexpr char kSavedPurpose[] = "activations inside blocks";
inline constexpr char kWidePurpose[] = "activation of one micro-batch (fp32)";
inline constexpr char kProjectionPurpose[] = "for gradients of the vocabulary in parts";

// The layers of the decoder in a row.
Chain ChainOf(const DecoderConfig& config, const BlockRecompute& recompute = {});

// Owned by one thread.
class DecoderCompute : public LayerCompute {
 public:
  // `decoder` and `budget` must outlive it. `tokens`: as StepMemoryFor has it. `storage`: of the
  // walks that it computes for, which use this no more when it ends; it holds the activations then,
  // in buffers of ForwardBytes(tokens) at least. nullptr: no walk spills any. `recompute`: of the
  // walks' chain. `activations`: kF32, or kBF16, which rounds each layer's output (to nearest, ties
  // to even), whether it is kept or not: so the result depends on nothing else. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<DecoderCompute>> CreateForTraining(
      Decoder* decoder, int64_t tokens, MemoryBudget* budget, ActivationStorage* storage = nullptr,
      const BlockRecompute& recompute = {}, DType activations = DType::kF32);
  // For passes of at most `tokens` that keep no activation and have no backward operations.
  static absl::StatusOr<std::unique_ptr<DecoderCompute>> CreateForEvaluation(Decoder* decoder,
                                                                             int64_t tokens,
                                                                             MemoryBudget* budget);

  Decoder& decoder() { return *decoder_; }
  // How many a pass may have that keeps no activation.
  int64_t most_forward_tokens() const;

  absl::Status BeginPass(std::span<const MicroBatch> batches, double gradient_scale) override;
  size_t num_micro_batches() const override { return batches_.size(); }
  absl::Status Forward(int layer, const HeldWeights& weights, size_t batch) override;
  absl::Status Loss(int layer, const HeldWeights& weights, size_t batch) override;
  absl::Status LossAndGradient(int layer, const HeldWeights& weights, size_t batch) override;
  absl::Status Recompute(int layer, const HeldWeights& weights, size_t batch) override;
  absl::Status Backward(int layer, const HeldWeights& weights, size_t batch) override;
  void Save(int layer) override;
  void Keep(int layer) override;
  void Drop(int layer) override;
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& weights,
                                                            int64_t first_elem) override;
  Event* WeightsAreUsed(int /*layer*/) override { return nullptr; }
  absl::StatusOr<double> LossSumOf(size_t batch) override { return loss_sums_[batch]; }

 private:
  DecoderCompute(Decoder* decoder, DType activations);
  void SetActivations(std::span<std::byte> memory, int num_slots);
  // [tokens, hidden] of one micro-batch. Requires: the memory has room for the pass from the slot's
  // beginning on.
  std::span<std::byte> Activation(int slot, size_t batch) const;
  // fp32 memory to compute that activation in: its own, or where it is not fp32, memory that the
  // next call reuses.
  std::span<float> Room(int slot, size_t batch) const;
  // Brings the activation there.
  std::span<float> Wide(int slot, size_t batch) const;
  // Takes it from there.
  void Put(std::span<const float> activation, int slot, size_t batch) const;
  // For the layer's activation.
  int FreeSlot(int layer) const;
  std::span<float> ActivationGradient(size_t batch) const;
  std::span<float> Gradient(int layer) const;
  std::span<float> ZeroedGradient(int layer) const;
  LayerWeights EmbedFor(const HeldWeights& weights) const;
  // With vocabulary_in_parts:
  bool vocabulary_in_parts() const { return projection_inputs_.size_bytes() > 0; }
  ProjectionInputs ProjectionInputsOf(size_t batch) const;
  // These take all micro-batches at once, for layers that are lent in pieces
  // (decoder_compute_pieces.cc).
  absl::Status EmbedPieces(WeightPieces& pieces);
  absl::Status LossInPieces(int layer, const HeldWeights& weights);
  absl::Status LossAndGradientInPieces(int layer, const HeldWeights& weights);
  // The table of the output projection; nullptr: it is lent as a whole.
  WeightPieces* TableOf(int layer, const HeldWeights& weights) const;
  // The small tensors of the output layer, which stay until the next call.
  absl::StatusOr<LayerWeights> TakeSmallTensors(int layer, const HeldWeights& weights);
  // `call(piece, batch)` for the rows of the table, and every micro-batch.
  template <typename Call>
  absl::Status ForEachPiece(WeightPieces& pieces, const Call& call) const;
  int64_t small_tensor_bytes() const;  // of the output layer, at most
  int64_t num_logit_sums() const;
  std::span<cpu::LogitSums> LogitSumsOf(size_t batch) const;
  // The memory that the layer saves to in this pass, for one micro-batch.
  SavedOfBlock SavedOf(int layer, size_t batch) const;

  Decoder* const decoder_;
  const DecoderConfig& config_;
  const DType dtype_;  // of activations
  HostBuffer own_activations_;
  HostBuffer wide_;  // [tokens of a micro-batch, hidden], unless they are fp32
  std::span<std::byte> activations_;
  int num_slots_ = 1;
  bool slots_are_shared_ = false;  // with a storage, which says where each activation lies
  int64_t slot_bytes_ = 0;
  HostBuffer activation_gradient_;
  HostBuffer layer_gradient_;
  HostBuffer embedding_gradient_;  // only when embeddings are tied, and not made in parts
  // With vocabulary_in_parts, as DecoderStepMemory has them.
  HostBuffer projection_inputs_, log_sum_exp_, small_gradient_;
  // For layers that come in pieces: sums of logits, and behind them the small tensors of the output
  // layer.
  HostBuffer logit_sums_;
  BlockRecompute recompute_;
  HostBuffer saved_;                  // block by block, in each micro-batch by micro-batch
  std::vector<int64_t> saved_begin_;  // by block
  int64_t most_saved_tokens_ = 0;

  // The pass:
  std::span<const MicroBatch> batches_;
  std::vector<int64_t> first_token_;  // of each micro-batch, and one past the last
  double gradient_scale_ = 1;
  std::vector<double> loss_sums_;  // by micro-batch
  // Activations lie in slots, the newest in `slot_`. Those of layers that are kept stay where they
  // are, and the next layer's goes to one that is free.
  int slot_ = 0;
  std::vector<int> kept_in_slot_;  // by layer; -1: not kept
  std::vector<uint8_t> is_saved_;  // by layer
};

}  // namespace forebay
