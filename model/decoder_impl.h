// What a Decoder is made of. Private to model/decoder*.cc.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "forebay/memory/host_buffer.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_tensors.h"
#include "forebay/model/decoder_workspace.h"
#include "forebay/model/sequences.h"
#include "forebay/step/layer_walk.h"

namespace forebay {

// Memory that the operators' context grows to, charged for as long as the decoder lives.
class ScratchCharge {
 public:
  ScratchCharge() = default;
  ScratchCharge(const ScratchCharge&) = delete;
  ScratchCharge& operator=(const ScratchCharge&) = delete;
  ~ScratchCharge();
  absl::Status Charge(MemoryBudget* budget, int64_t size_bytes);

 private:
  MemoryBudget* budget_ = nullptr;
  int64_t size_bytes_ = 0;
};

// The tokens of one pass through a block: of a micro-batch, or of a cached sequence.
struct BlockInput {
  int64_t tokens = 0;
  std::span<const int32_t> positions;  // rows of the tables of positions
  cpu::RopeTable rope;
};

struct Decoder::Impl {
  Impl(const DecoderConfig& config, const DecoderOptions& options);

  // y = norm(x) over rows of `width`.
  void Normalize(const NormTensors& norm, const LayerWeights& weights, const float* x, int64_t rows,
                 int64_t width, float* y, const NormStatistics& statistics);
  // dx (+)= its gradient; the norm's own gradients are added to `gradient`, which begins with
  // element `first_elem` of the layer's.
  void NormalizeBackward(const NormTensors& norm, const LayerWeights& weights, const float* x,
                         const NormStatistics& statistics, const float* dy, int64_t rows,
                         int64_t width, float* dx, bool accumulate, std::span<float> gradient,
                         int64_t first_elem = 0);

  BlockInput InputOf(const MicroBatch& batch) const;
  cpu::RopeTable RopeTableOfBatches() const;  // for sequences of at most max_tokens
  cpu::AttentionShape AttentionOf(int block, const MicroBatch& batch) const;
  int64_t WindowOf(int block) const;

  // Queries into workspace.query; keys and values to the addresses given (the workspace's, or a
  // cache's).
  void ProjectQkv(const BlockTensors& block, const LayerWeights& weights, const BlockInput& input,
                  const float* x, float* key, float* value);
  // x += what attention found (workspace.attended), then x += MLP(x). `between`: what x is between
  // the two goes there; nullptr: nowhere.
  void FinishBlock(const BlockTensors& block, const LayerWeights& weights, int64_t tokens, float* x,
                   float* between);
  // workspace.up and gate: what the MLP makes of workspace.normed.
  void ProjectMlp(const BlockTensors& block, const LayerWeights& weights, int64_t tokens);
  // workspace.activated = the MLP's inner activations, of these.
  void ActivateMlp(int64_t tokens);

  // Everything that the backward pass needs of the forward pass and is not saved, from the block's
  // input.
  void ComputeAgain(Recompute recompute, int block, const LayerWeights& weights,
                    const MicroBatch& batch, const float* x);
  void BackwardMlp(const BlockTensors& block, const LayerWeights& weights, int64_t tokens,
                   float* dx, std::span<float> gradient);
  void BackwardAttention(int block, const LayerWeights& weights, const MicroBatch& batch,
                         const float* x, float* dx, std::span<float> gradient);
  void BackwardRotation(const BlockTensors& block, const LayerWeights& weights,
                        const BlockInput& input, std::span<float> gradient);

  Linear Projection(const LayerWeights& head, const LayerWeights& embed) const;
  // `weights`: of its layer, from that row on at least.
  cpu::ProjectionPart PartOf(const LayerWeights& weights, int64_t first_row) const;
  int64_t FirstRowOf(const LayerWeights& piece) const;

  // Generation. x: [tokens, hidden], in workspace.residual.
  void ExtendEmbed(const LayerWeights& embed, std::span<const int32_t> tokens,
                   std::span<const int32_t> positions, float* x);
  void ExtendBlock(int block, const LayerWeights& weights, const BlockInput& input, KvCache& cache,
                   float* x);
  // logits: [vocab], of what follows the token of `x`.
  void ExtendLogits(const LayerWeights& head, const LayerWeights& embed, const float* x,
                    std::span<float> logits);
  // The same where the table comes in pieces: x becomes the input of the projection, and each piece
  // gives the logits of its rows. `head`: with the small tensors.
  void NormalizeLast(const LayerWeights& head, float* x);
  void ExtendLogitsOfPiece(const LayerWeights& piece, const float* normed, std::span<float> logits);

  const DecoderConfig config;
  const DecoderOptions options;
  const Inventory inventory;
  const DecoderTensors tensors;
  const int64_t query_width, key_width;
  // Passes over a chunk of a sequence.
  LayerWalk walk_with_logits;
  LayerWalk walk_without_logits;
  std::vector<SequencePart> parts;
  cpu::Context context;
  HostBuffer memory;
  ScratchCharge scratch;
  DecoderWorkspace workspace;
};

}  // namespace forebay
