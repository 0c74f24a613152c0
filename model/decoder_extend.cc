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

void Decoder::Impl::NormalizeLast(const LayerWeights& head, float* x) {
  Normalize(tensors.final_norm, head, x, 1, config.hidden_size, workspace.normed,
            workspace.attention_statistics);
  std::copy_n(workspace.normed, config.hidden_size, x);
}

void Decoder::Impl::ExtendLogitsOfPiece(const LayerWeights& piece, const float* normed,
                                        std::span<float> logits) {
  const cpu::ProjectionPart part = PartOf(piece, FirstRowOf(piece));
  const int64_t num_elems = std::ssize(piece.data) / SizeOf(piece.dtype);
  Linear rows = part.head;
  rows.weight = part.rows;
  rows.out = std::min(num_elems / config.hidden_size, config.vocab_size - part.first_row);
  cpu::Logits(context, rows, normed, 1, logits.data() + part.first_row);
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
    WeightPieces* const pieces = weights.Of(layer).pieces;
    if (pieces != nullptr) return batch == 0 ? EmbedPieces(*pieces) : absl::OkStatus();
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
    const DecoderConfig& config = impl_.config;
    const LayerWeights table = weights.Of(config.tied_embeddings ? EmbedLayer() : layer);
    if (table.pieces != nullptr) {
      return batch == 0 ? LogitsInPieces(*table.pieces, weights.Of(layer)) : absl::OkStatus();
    }
    if (!part.is_last) return absl::OkStatus();
    impl_.ExtendLogits(weights.Of(layer), table, LastOf(batch), LogitsOf(batch));
    return absl::OkStatus();
  }
  Event* WeightsAreUsed(int /*layer*/) override { return nullptr; }

 private:
  // All parts at once, from the pieces that have rows of their tokens.
  absl::Status EmbedPieces(WeightPieces& pieces) {
    const int64_t hidden = impl_.config.hidden_size;
    const int64_t piece_rows = pieces.piece_elems() / hidden;
    for (int piece = 0; piece < pieces.num_pieces(); ++piece) {
      const auto is_in_piece = [&](int32_t token) { return token / piece_rows == piece; };
      const bool is_needed = std::ranges::any_of(impl_.parts, [&](const SequencePart& part) {
        return std::ranges::any_of(part.tokens, is_in_piece);
      });
      if (!is_needed) continue;
      FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, pieces.Get(piece));
      for (size_t batch = 0; batch < impl_.parts.size(); ++batch) {
        cpu::EmbeddingForwardOfRows(impl_.context, weights.data.data(), weights.dtype,
                                    impl_.parts[batch].tokens, hidden, piece * piece_rows,
                                    piece_rows, Activation(batch));
      }
    }
    return absl::OkStatus();
  }
  // `head`: of the output layer, which may be that of the pieces.
  absl::Status LogitsInPieces(WeightPieces& pieces, const LayerWeights& head) {
    // The activations are not needed any more: normalized they lie in their places.
    {
      LayerWeights small = head;
      if (head.pieces != nullptr) {
        FOREBAY_ASSIGN_OR_RETURN(small, head.pieces->Get(head.pieces->num_pieces() - 1));
      }
      for (size_t batch = 0; batch < impl_.parts.size(); ++batch) {
        if (impl_.parts[batch].is_last) impl_.NormalizeLast(small, LastOf(batch));
      }
    }
    for (int piece = 0; piece < pieces.num_pieces(); ++piece) {
      FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, pieces.Get(piece));
      if (weights.first_elem >= impl_.config.vocab_size * impl_.config.hidden_size) break;
      for (size_t batch = 0; batch < impl_.parts.size(); ++batch) {
        if (!impl_.parts[batch].is_last) continue;
        impl_.ExtendLogitsOfPiece(weights, LastOf(batch), LogitsOf(batch));
      }
    }
    return absl::OkStatus();
  }
  // The activation of the part's last token.
  float* LastOf(size_t batch) const {
    const SequencePart& part = impl_.parts[batch];
    return Activation(batch) + (std::ssize(part.tokens) - 1) * impl_.config.hidden_size;
  }
  std::span<float> LogitsOf(size_t batch) const {
    const auto vocab = static_cast<size_t>(impl_.config.vocab_size);
    return logits_.subspan(impl_.parts[batch].sequence * vocab, vocab);
  }
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
