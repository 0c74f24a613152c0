#include "forebay/model/decoder_flops.h"

#include <algorithm>

namespace forebay {
namespace {

// Keys that the queries of one row see: all before them and themselves, at most `window` (0: all).
double VisibleKeys(int64_t seq, int64_t window) {
  const int64_t most = window > 0 ? std::min(window, seq) : seq;
  // The first `most` queries see 1, 2, ..., most; the others `most` each.
  return static_cast<double>(most) * static_cast<double>(most + 1) / 2 +
         static_cast<double>(seq - most) * static_cast<double>(most);
}

// Elements of the matrices of one block.
double BlockMatrixElems(const DecoderConfig& config) {
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t mlp_matrices = config.mlp == MlpKind::kSwiGlu ? 3 : 2;
  return static_cast<double>(config.hidden_size) *
         static_cast<double>(2 * queries + 2 * keys + mlp_matrices * config.intermediate_size);
}

}  // namespace

DecoderFlops FlopsOf(const DecoderConfig& config, int64_t tokens, int64_t seq) {
  const auto num_tokens = static_cast<double>(tokens);
  const double rows = num_tokens / static_cast<double>(seq);
  double blocks = 2 * num_tokens * BlockMatrixElems(config) * config.num_layers;
  for (int block = 0; block < config.num_layers; ++block) {
    const int64_t window = config.window.empty() ? 0 : config.window[static_cast<size_t>(block)];
    // Scores, and their product with the values.
    blocks += 2 * 2 * rows * VisibleKeys(seq, window) *
              static_cast<double>(config.num_heads * config.head_dim);
  }
  const double head = 2 * num_tokens * static_cast<double>(config.vocab_size) *
                      static_cast<double>(config.hidden_size);
  return {.forward = blocks + head, .backward = 3 * blocks + 2 * head};
}

}  // namespace forebay
