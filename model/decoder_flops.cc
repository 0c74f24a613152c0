#include "forebay/model/decoder_flops.h"

#include <algorithm>

#include "forebay/model/operands/vocabulary_cut.h"

namespace forebay {
namespace {

// Keys that the queries of one row see: all before them and themselves, at most `window` (0: all).
double VisibleKeys(int64_t seq, int64_t window) {
  const int64_t most = window > 0 ? std::min(window, seq) : seq;
  // The first `most` queries see 1, 2, ..., most; the others `most` each.
  return static_cast<double>(most) * static_cast<double>(most + 1) / 2 +
         static_cast<double>(seq - most) * static_cast<double>(most);
}

// Operations of one block, forward.
struct BlockFlops {
  double before_mlp = 0;  // projections to queries, keys and values, and attention
  double into_mlp = 0;    // the projection of what attention found, and the MLP's first
  double out_of_mlp = 0;

  double All() const { return before_mlp + into_mlp + out_of_mlp; }
  double Again(Recompute recompute) const {
    return recompute == Recompute::kAll         ? before_mlp + into_mlp
           : recompute == Recompute::kAttention ? before_mlp
                                                : 0;
  }
};

BlockFlops FlopsOfBlock(const DecoderConfig& config, int block, int64_t tokens, int64_t seq) {
  const auto num_tokens = static_cast<double>(tokens);
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto inner = static_cast<double>(config.intermediate_size);
  const auto queries = static_cast<double>(config.num_heads * config.head_dim);
  const auto keys = static_cast<double>(config.num_kv_heads * config.head_dim);
  const int64_t window = config.window.empty() ? 0 : config.window[static_cast<size_t>(block)];
  // Scores, and their product with the values.
  const double attention =
      2 * 2 * num_tokens / static_cast<double>(seq) * VisibleKeys(seq, window) * queries;
  const double mlp_inputs = config.mlp == MlpKind::kSwiGlu ? 2 : 1;
  return {.before_mlp = 2 * num_tokens * hidden * (queries + 2 * keys) + attention,
          .into_mlp = 2 * num_tokens * hidden * (queries + mlp_inputs * inner),
          .out_of_mlp = 2 * num_tokens * hidden * inner};
}

}  // namespace

DecoderFlops FlopsOf(const DecoderConfig& config, int64_t tokens, int64_t seq,
                     const BlockRecompute& recompute, bool on_cpu) {
  const double head = 2 * static_cast<double>(tokens) * static_cast<double>(config.vocab_size) *
                      static_cast<double>(config.hidden_size);
  DecoderFlops flops = {.forward = head, .backward = 2 * head};
  for (int i = 0; i < config.num_layers; ++i) {
    const BlockFlops block = FlopsOfBlock(config, i, tokens, seq);
    flops.forward += block.All();
    flops.backward += 2 * block.All() + block.Again(recompute.Of(i));
    if (recompute.GoesForwardTwice(i, config.num_layers)) flops.backward += block.All();
  }
  if (recompute.vocabulary_in_parts) flops.backward += head;
  if (on_cpu && VocabularyCut().Cuts(config.vocab_size)) flops.backward += head;
  return flops;
}

}  // namespace forebay
