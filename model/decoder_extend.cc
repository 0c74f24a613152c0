// Generation: a pass over the new tokens of one sequence, with the keys and values of those before
// cached.
#include <algorithm>
#include <numeric>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_impl.h"

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

// `logits` empty: only fills the cache.
absl::Status Decoder::Impl::ExtendChunk(ParamSource& source, std::span<const int32_t> tokens,
                                        KvCache& cache, std::span<float> logits) {
  const int64_t hidden = config.hidden_size;
  BlockInput input;
  input.tokens = static_cast<int64_t>(tokens.size());
  input.positions = {workspace.positions, tokens.size()};
  input.rope = {cache.RopeCos(), cache.RopeSin(), config.head_dim};
  std::iota(workspace.positions, workspace.positions + tokens.size(),
            static_cast<int32_t>(cache.length_));
  {
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source.Acquire(EmbedLayer()));
    const LayerWeights& embed = lease.weights();
    cpu::EmbeddingForward(context, ElementOf(embed, tensors.token_embedding), embed.dtype, tokens,
                          hidden, workspace.residual, /*accumulate=*/false);
    if (config.positions == PositionKind::kLearned) {
      cpu::EmbeddingForward(context, ElementOf(embed, tensors.position_embedding), embed.dtype,
                            input.positions, hidden, workspace.residual, /*accumulate=*/true);
    }
  }
  for (int block = 0; block < config.num_layers; ++block) {
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source.Acquire(BlockLayer(block)));
    ExtendBlock(block, lease.weights(), input, cache);
  }
  if (!logits.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease head, source.Acquire(HeadLayer(config)));
    WeightsLease embed;
    if (config.tied_embeddings) {
      FOREBAY_ASSIGN_OR_RETURN(embed, source.Acquire(EmbedLayer()));
    }
    Normalize(tensors.final_norm, head.weights(), workspace.residual + (input.tokens - 1) * hidden,
              1, hidden, workspace.normed, workspace.attention_statistics);
    cpu::Logits(context, Projection(head.weights(), embed.weights()), workspace.normed, 1,
                logits.data());
  }
  cache.length_ += input.tokens;
  return absl::OkStatus();
}

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
  // All chunks are announced first, so that the source reads the next chunk's first layers during
  // this one's last.
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    source.Expect(begin + chunk < num_tokens ? impl.extend_order : impl.forward_order);
  }
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t size = std::min(chunk, num_tokens - begin);
    const bool last = begin + size == num_tokens;
    const absl::Status status = impl.ExtendChunk(source, tokens.subspan(begin, size), cache,
                                                 last ? logits : std::span<float>());
    if (!status.ok()) {
      cache.length_ = length_before;
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
