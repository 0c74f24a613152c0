// A decoder's computation, layer by layer, on the CPU: what a training step and generation call. It
// holds no weights: each call is given the flat vector of its layer (param_source.h) and, in
// backward, the fp32 gradient vector to add to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/data/micro_batch.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/recompute.h"
#include "forebay/step/param_source.h"

namespace forebay {

struct DecoderOptions {
  int num_threads = 1;
  cpu::Precision precision = cpu::Precision::kBf16;
  int64_t max_tokens = 0;  // of the largest micro-batch (rows * seq)
  bool training = true;    // makes the workspace of the backward pass too
};

// Bytes that Create charges for these options: the activations of one block (decoder_workspace.h)
// in whole pages, and the operators' scratch (cpu::ScratchBytes). The planner's figure.
int64_t DecoderWorkspaceBytes(const DecoderConfig& config, const DecoderOptions& options);

// Where a block saves of the forward pass of one micro-batch what its backward pass does not
// compute again.
struct SavedOfBlock {
  Recompute recompute = Recompute::kAll;
  std::byte* memory = nullptr;  // SavedBytes, 64-byte aligned; of kAll none
};
// In proportion to `tokens`.
int64_t SavedBytes(const DecoderConfig& config, Recompute recompute, int64_t tokens);

// One micro-batch's part in the gradient of the output projection is made of these.
struct ProjectionInputs {
  std::span<float> normed;       // [tokens, hidden]: its input
  std::span<float> log_sum_exp;  // [tokens]: of the logits
};

// By sequence; one may be empty.
using TokensOfSequences = std::span<const std::span<const int32_t>>;

// Keys (rotated) and values of one sequence, all layers, fp32. Owned by the caller of generation;
// used by one thread.
class KvCache {
 public:
  // `budget` must outlive it. BadInputError when max_length exceeds the model's positions,
  // OutOfMemoryError. Requires: max_length > 0.
  static absl::StatusOr<KvCache> Create(MemoryBudget* budget, const DecoderConfig& config,
                                        int64_t max_length);
  // Bytes that Create charges.
  static int64_t BytesFor(const DecoderConfig& config, int64_t max_length);
  int64_t length() const { return length_; }
  int64_t max_length() const { return max_length_; }
  // Forgets all but the first `length` tokens. Requires: 0 <= length <= length().
  void Truncate(int64_t length);

 private:
  friend class Decoder;
  float* Keys(int layer) const;    // [max_length, kv_heads, head_dim]
  float* Values(int layer) const;  // the same
  // [max_length, head_dim / 2]: a sequence may be longer than the decoder's own tables
  // (max_tokens).
  std::span<float> RopeCos() const;
  std::span<float> RopeSin() const;

  HostBuffer memory_;
  int num_layers_ = 0;
  int64_t row_floats_ = 0;  // kv_heads * head_dim
  int64_t half_head_ = 0;   // 0 with learned positions
  int64_t length_ = 0;
  int64_t length_before_ = 0;  // the Extend that is under way
  int64_t max_length_ = 0;
};

// Owned by one thread.
class Decoder {
 public:
  // `budget` must outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const DecoderConfig& config,
                                                         const DecoderOptions& options,
                                                         MemoryBudget* budget);
  ~Decoder();
  const DecoderConfig& config() const;
  const DecoderOptions& options() const;
  const Inventory& inventory() const;
  cpu::Context& context();

  // Training, one micro-batch. x, dx: [tokens, hidden] fp32. Requires: at most max_tokens tokens,
  // all in the vocabulary; positions of the model.
  void Embed(const LayerWeights& embed, const MicroBatch& batch, std::span<float> x);
  // x in place: the input of the block becomes its output. `saved`: written.
  void ForwardBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                    std::span<float> x, const SavedOfBlock& saved = {});
  // `x`: the block's input. Leaves in the workspace what BackwardBlock needs of the forward pass
  // and is not in `saved`, which is ForwardBlock's.
  void RecomputeBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                      std::span<const float> x, const SavedOfBlock& saved = {});
  // Behind RecomputeBlock of the same arguments. dx in: gradient of the block's output; out: of its
  // input. gradient: the layer's flat fp32 vector, added to. `saved` is used up.
  void BackwardBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                     std::span<const float> x, std::span<float> dx, std::span<float> gradient,
                     const SavedOfBlock& saved = {});
  // Final norm, output projection and loss. `embed` is used when embeddings are tied.
  cpu::LossResult Loss(const LayerWeights& head, const LayerWeights& embed, const MicroBatch& batch,
                       std::span<const float> x);
  // Also the gradients of loss_sum * scale: dx [tokens, hidden] written, the two gradient vectors
  // added to
  // (`embed_gradient` only when tied; it may be empty otherwise).
  cpu::LossResult LossAndGradient(const LayerWeights& head, const LayerWeights& embed,
                                  const MicroBatch& batch, std::span<const float> x, double scale,
                                  std::span<float> dx, std::span<float> head_gradient,
                                  std::span<float> embed_gradient);
  // The same without the gradient of the projection, whose `inputs` are written. `small_gradient`:
  // of the head's layer from LayerSpec::small_begin on.
  cpu::LossResult LossAndInputGradient(const LayerWeights& head, const LayerWeights& embed,
                                       const MicroBatch& batch, std::span<const float> x,
                                       double scale, std::span<float> dx,
                                       std::span<float> small_gradient,
                                       const ProjectionInputs& inputs);
  // `gradient` [rows, hidden] of the projection from `first_row` on (cpu::ProjectionGradient) is
  // added to. `weights`: of the projection's layer, those rows at least.
  void AddProjectionGradient(const LayerWeights& weights, const MicroBatch& batch,
                             const ProjectionInputs& inputs, double scale, int64_t first_row,
                             std::span<float> gradient);
  void BackwardEmbed(const MicroBatch& batch, std::span<const float> dx, std::span<float> gradient);
  // The same of some rows, `gradient` [rows, hidden], of the table of tokens, from `first_row` on.
  void BackwardEmbedRows(const MicroBatch& batch, std::span<const float> dx, int64_t first_row,
                         std::span<float> gradient);

  // Embed and LossAndInputGradient where memory has no room for all of the table (WeightPieces),
  // with the same bits. A `piece` begins with a row of the table. x, of the tokens whose rows the
  // piece has, is written.
  void EmbedPiece(const LayerWeights& piece, const MicroBatch& batch, std::span<float> x);
  // normed [tokens, hidden]: the input of the output projection. `head`: a piece with the small
  // tensors.
  void NormalizeForLoss(const LayerWeights& head, const MicroBatch& batch, std::span<const float> x,
                        std::span<float> normed);
  // The same in memory of the decoder, until its next call.
  std::span<const float> NormalizedForLoss(const LayerWeights& head, const MicroBatch& batch,
                                           std::span<const float> x);
  // As cpu::LogitSumsOfPart and cpu::InputGradientOfPart have it; d_normed: of `normed`.
  void AddLogitSums(const LayerWeights& piece, const MicroBatch& batch,
                    std::span<const float> normed, std::span<cpu::LogitSums> sums);
  void AddInputGradient(const LayerWeights& piece, const MicroBatch& batch,
                        const ProjectionInputs& inputs, double scale, std::span<float> d_normed);
  // dx in: that of `normed`; out: that of x. small_gradient: as LossAndInputGradient has it.
  void BackwardNormForLoss(const LayerWeights& head, const MicroBatch& batch,
                           std::span<const float> x, std::span<float> dx,
                           std::span<float> small_gradient);

  // Generation: appends `tokens` to the cached sequences, and writes to `logits` [caches, vocab]
  // what follows the last of each; without new tokens a row is left as it is. Runs max_tokens of
  // all sequences at a time, each run over all layers. Announces to `source` the layers that it
  // acquires. BadInputError when a cache has no room for them or a token is outside the vocabulary;
  // the source's errors. After an error the caches are as before.
  absl::Status Extend(ParamSource& source, TokensOfSequences tokens, std::span<KvCache> caches,
                      std::span<float> logits);
  // The same for one sequence, of at least one token.
  absl::Status Extend(ParamSource& source, std::span<const int32_t> tokens, KvCache& cache,
                      std::span<float> logits);

 private:
  struct Impl;
  class InSaved;
  class PartsCompute;
  explicit Decoder(std::unique_ptr<Impl> impl);
  void CheckTokens(const MicroBatch& batch) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
