// Generation: a pass over new tokens of some sequences, with the keys and values of those before
// cached.
#include <algorithm>
#include <numeric>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_impl.h"
#include "forebay/model/sequences.h"
#include "forebay/step/forward_compute.h"
#include "forebay/step/layer_walk.h"

namespace forebay {

void Decoder::Impl::ExtendBlock(int block, const LayerWeights& weights, const BlockInput& input,
                                KvCache& cache, float* x) {
  const BlockTensors& block_tensors = tensors.blocks[block];
  const int64_t first = cache.length_;
  float* const keys = cache.Keys(block);
  float* const values = cache.Values(block);
  ProjectQkv(block_tensors, weights, input, x, keys + first * key_width,
             values + first * key_width);
  cpu::AttentionCached(context, input.tokens, first, config.num_heads, config.num_kv_heads,
                       config.head_dim, WindowOf(block), workspace.query, keys, values,
                       workspace.attended);
  FinishBlock(block_tensors, weights, input.tokens, x, /*between=*/nullptr);
}

void Decoder::Impl::ExtendEmbed(const LayerWeights& embed, std::span<const int32_t> tokens,
                                std::span<const int32_t> positions, float* x) {
  const int64_t hidden = config.hidden_size;
  cpu::EmbeddingForward(context, ElementOf(embed, tensors.token_embedding), embed.dtype, tokens,
                        hidden, x, /*accumulate=*/false);
  if (config.positions == PositionKind::kLearned) {
    cpu::EmbeddingForward(context, ElementOf(embed, tensors.position_embedding), embed.dtype,
                          positions, hidden, x, /*accumulate=*/true);
  }
}

void Decoder::Impl::ExtendLogits(const LayerWeights& head, const LayerWeights& embed,
                                 const float* x, std::span<float> logits) {
  Normalize(tensors.final_norm, head, x, 1, config.hidden_size, workspace.normed,
            workspace.attention_statistics);
  cpu::Logits(context, Projection(head, embed), workspace.normed, 1, logits.data());
}

// The parts of one pass, each as a micro-batch. Their activations lie behind each other in the
// workspace.
class Decoder::PartsCompute : public ForwardCompute {
 public:
  PartsCompute(Impl* impl, std::span<KvCache> caches, std::span<float> logits)
      : impl_(*impl), caches_(caches), logits_(logits) {}

  // The pass is over impl.parts.
  void Begin() {
    int32_t* positions = impl_.workspace.positions;
    for (const SequencePart& part : impl_.parts) {
      std::iota(positions, positions + part.tokens.size(),
                static_cast<int32_t>(caches_[part.sequence].length_));
      positions += part.tokens.size();
    }
  }

  size_t num_micro_batches() const override { return impl_.parts.size(); }
  absl::Status Forward(int layer, const HeldWeights& weights, size_t batch) override {
    const SequencePart& part = impl_.parts[batch];
    const BlockInput input = InputOf(batch);
    if (layer == EmbedLayer()) {
      impl_.ExtendEmbed(weights.Of(layer), part.tokens, input.positions, Activation(batch));
    } else {
      impl_.ExtendBlock(layer - BlockLayer(0), weights.Of(layer), input, caches_[part.sequence],
                        Activation(batch));
    }
    return absl::OkStatus();
  }
  absl::Status Loss(int layer, const HeldWeights& weights, size_t batch) override {
    const SequencePart& part = impl_.parts[batch];
    if (!part.is_last) return absl::OkStatus();
    const DecoderConfig& config = impl_.config;
    const float* const last =
        Activation(batch) + (std::ssize(part.tokens) - 1) * config.hidden_size;
    impl_.ExtendLogits(weights.Of(layer),
                       config.tied_embeddings ? weights.Of(EmbedLayer()) : LayerWeights(), last,
                       logits_.subspan(part.sequence * config.vocab_size, config.vocab_size));
    return absl::OkStatus();
  }
  Event* WeightsAreUsed(int /*layer*/) override { return nullptr; }

 private:
  // Tokens before those of the part.
  int64_t FirstToken(size_t batch) const {
    int64_t first = 0;
    for (size_t before = 0; before < batch; ++before) {
      first += std::ssize(impl_.parts[before].tokens);
    }
    return first;
  }
  float* Activation(size_t batch) const {
    return impl_.workspace.residual + FirstToken(batch) * impl_.config.hidden_size;
  }
  BlockInput InputOf(size_t batch) const {
    const SequencePart& part = impl_.parts[batch];
    const KvCache& cache = caches_[part.sequence];
    return {.tokens = std::ssize(part.tokens),
            .positions = {impl_.workspace.positions + FirstToken(batch), part.tokens.size()},
            .rope = {cache.RopeCos(), cache.RopeSin(), impl_.config.head_dim}};
  }

  Impl& impl_;
  const std::span<KvCache> caches_;
  const std::span<float> logits_;
};

absl::Status Decoder::Extend(ParamSource& source, TokensOfSequences tokens,
                             std::span<KvCache> caches, std::span<float> logits) {
  Impl& impl = *impl_;
  const DecoderConfig& config = impl.config;
  FOREBAY_CHECK(tokens.size() == caches.size());
  FOREBAY_CHECK(logits.size() == caches.size() * static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < caches.size(); ++i) {
    KvCache& cache = caches[i];
    FOREBAY_CHECK(cache.num_layers_ == config.num_layers && cache.row_floats_ == impl.key_width);
    FOREBAY_RETURN_IF_ERROR(CheckExtension(config, tokens[i], cache.length_, cache.max_length_));
    cache.length_before_ = cache.length_;
  }
  const auto walk_of_parts = [&]() -> LayerWalk& {
    return WantsLogits(impl.parts) ? impl.walk_with_logits : impl.walk_without_logits;
  };
  const int64_t most = impl.options.max_tokens;
  // All passes are announced first, so that the source reads the next one's first layers during
  // this one's last.
  for (SequencePasses passes(tokens, most); passes.Next(impl.parts);) {
    walk_of_parts().Announce(source);
  }
  PartsCompute compute(&impl, caches, logits);
  for (SequencePasses passes(tokens, most); passes.Next(impl.parts);) {
    compute.Begin();
    const absl::Status status = walk_of_parts().Run(source, compute, {});
    if (!status.ok()) {
      for (KvCache& cache : caches) cache.length_ = cache.length_before_;
      return status;
    }
    for (const SequencePart& part : impl.parts) {
      caches[part.sequence].length_ += std::ssize(part.tokens);
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::Extend(ParamSource& source, std::span<const int32_t> tokens, KvCache& cache,
                             std::span<float> logits) {
  FOREBAY_CHECK(!tokens.empty());
  return Extend(source, {&tokens, 1}, {&cache, 1}, logits);
}

}  // namespace forebay
