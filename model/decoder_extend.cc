// Generation: a pass over the new tokens of one sequence, with the keys and values of those before
// cached.
#include <algorithm>
#include <numeric>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_impl.h"
#include "forebay/step/forward_compute.h"
#include "forebay/step/layer_walk.h"

namespace forebay {

void Decoder::Impl::ExtendBlock(int block, const LayerWeights& weights, const BlockInput& input,
                                KvCache& cache) {
  const BlockTensors& block_tensors = tensors.blocks[block];
  const int64_t first = cache.length_;
  float* const keys = cache.Keys(block);
  float* const values = cache.Values(block);
  ProjectQkv(block_tensors, weights, input, workspace.residual, keys + first * key_width,
             values + first * key_width);
  cpu::AttentionCached(context, input.tokens, first, config.num_heads, config.num_kv_heads,
                       config.head_dim, WindowOf(block), workspace.query, keys, values,
                       workspace.attended);
  FinishBlock(block_tensors, weights, input.tokens, workspace.residual);
}

void Decoder::Impl::ExtendEmbed(const LayerWeights& embed, std::span<const int32_t> tokens,
                                std::span<const int32_t> positions) {
  const int64_t hidden = config.hidden_size;
  cpu::EmbeddingForward(context, ElementOf(embed, tensors.token_embedding), embed.dtype, tokens,
                        hidden, workspace.residual, /*accumulate=*/false);
  if (config.positions == PositionKind::kLearned) {
    cpu::EmbeddingForward(context, ElementOf(embed, tensors.position_embedding), embed.dtype,
                          positions, hidden, workspace.residual, /*accumulate=*/true);
  }
}

void Decoder::Impl::ExtendLogits(const LayerWeights& head, const LayerWeights& embed,
                                 int64_t tokens, std::span<float> logits) {
  const int64_t hidden = config.hidden_size;
  Normalize(tensors.final_norm, head, workspace.residual + (tokens - 1) * hidden, 1, hidden,
            workspace.normed, workspace.attention_statistics);
  cpu::Logits(context, Projection(head, embed), workspace.normed, 1, logits.data());
}

// The tokens of one chunk as a pass over the layers. The one activation is in the workspace.
class Decoder::ChunkCompute : public ForwardCompute {
 public:
  ChunkCompute(Impl* impl, KvCache* cache, std::span<float> logits)
      : impl_(*impl), cache_(*cache), logits_(logits) {}

  void Begin(std::span<const int32_t> tokens) {
    tokens_ = tokens;
    int32_t* const positions = impl_.workspace.positions;
    std::iota(positions, positions + tokens.size(), static_cast<int32_t>(cache_.length_));
    input_.tokens = static_cast<int64_t>(tokens.size());
    input_.positions = {positions, tokens.size()};
    input_.rope = {cache_.RopeCos(), cache_.RopeSin(), impl_.config.head_dim};
  }

  size_t num_micro_batches() const override { return 1; }
  absl::Status Forward(int layer, const HeldWeights& weights, size_t /*batch*/) override {
    if (layer == EmbedLayer()) {
      impl_.ExtendEmbed(weights.Of(layer), tokens_, input_.positions);
    } else {
      impl_.ExtendBlock(layer - BlockLayer(0), weights.Of(layer), input_, cache_);
    }
    return absl::OkStatus();
  }
  absl::Status Loss(int layer, const HeldWeights& weights, size_t /*batch*/) override {
    const bool is_tied = impl_.config.tied_embeddings;
    impl_.ExtendLogits(weights.Of(layer), is_tied ? weights.Of(EmbedLayer()) : LayerWeights(),
                       input_.tokens, logits_);
    return absl::OkStatus();
  }
  Event* WeightsAreUsed(int /*layer*/) override { return nullptr; }

 private:
  Impl& impl_;
  KvCache& cache_;
  const std::span<float> logits_;
  std::span<const int32_t> tokens_;
  BlockInput input_;
};

absl::Status Decoder::Extend(ParamSource& source, std::span<const int32_t> tokens, KvCache& cache,
                             std::span<float> logits) {
  Impl& impl = *impl_;
  const DecoderConfig& config = impl.config;
  FOREBAY_CHECK(!tokens.empty() && static_cast<int64_t>(logits.size()) == config.vocab_size);
  FOREBAY_CHECK(cache.num_layers_ == config.num_layers && cache.row_floats_ == impl.key_width);
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  if (cache.length_ + num_tokens > cache.max_length_) {
    return BadInputError(fmt::format(
        "generate: {} tokens do not fit behind the {} that the sequence has: it ends at "
        "{} positions. Shorten the prompt or lower --max_tokens",
        num_tokens, cache.length_, cache.max_length_));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return BadInputError(
          fmt::format("generate: token {} is outside the model's vocabulary of {}. Use the "
                      "tokenizer that belongs to the model",
                      token, config.vocab_size));
    }
  }
  const int64_t length_before = cache.length_;
  const int64_t chunk = impl.options.max_tokens;
  ChunkCompute compute(&impl, &cache, logits);
  const auto walk_of = [&](int64_t begin) -> LayerWalk& {
    return begin + chunk < num_tokens ? impl.walk_without_logits : impl.walk_with_logits;
  };
  // All chunks are announced first, so that the source reads the next chunk's first layers during
  // this one's last.
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) walk_of(begin).Announce(source);
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t size = std::min(chunk, num_tokens - begin);
    compute.Begin(tokens.subspan(begin, size));
    const absl::Status status = walk_of(begin).Run(source, compute, {});
    if (!status.ok()) {
      cache.length_ = length_before;
      return status;
    }
    cache.length_ += size;
  }
  return absl::OkStatus();
}

}  // namespace forebay
