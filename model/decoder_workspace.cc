#include "forebay/model/decoder_workspace.h"

#include <algorithm>

#include "forebay/base/round_up.h"
#include "forebay/model/rope.h"

namespace forebay {
namespace {

// Hands out consecutive pieces of memory; going back to a mark makes the next pieces share bytes
// with those before.
class Arena {
 public:
  Arena(std::byte* base, int64_t activation_bytes)
      : base_(base), activation_bytes_(activation_bytes) {}

  template <typename T = float>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  template <typename Elements>
  Elements* TakeActivation(int64_t count) {
    return static_cast<Elements*>(TakeBytes(count * activation_bytes_));
  }
  int64_t Mark() const { return used_bytes_; }
  void Rewind(int64_t mark) { used_bytes_ = mark; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  void* TakeBytes(int64_t size_bytes) {
    constexpr int64_t kAlignBytes = 64;
    void* const piece = base_ == nullptr ? nullptr : base_ + used_bytes_;
    used_bytes_ += (size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return piece;
  }

  std::byte* const base_;
  const int64_t activation_bytes_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

struct Widths {
  int64_t tokens, hidden, query, key, inner, heads, kv_heads, half_head;
};

template <typename Elements>
void PlaceAlwaysLive(const DecoderConfig& config, const Widths& w, Arena& arena,
                     WorkspaceOf<Elements>& workspace) {
  const auto statistics = [&](int64_t rows) {
    NormStatistics placed;
    placed.inverse = arena.Take(rows);
    if (config.norm == NormKind::kLayer) placed.mean = arena.Take(rows);
    return placed;
  };
  workspace.residual = arena.TakeActivation<Elements>(w.tokens * w.hidden);
  workspace.normed = arena.TakeActivation<Elements>(w.tokens * w.hidden);
  workspace.attention_statistics = statistics(w.tokens);
  workspace.mlp_statistics = statistics(w.tokens);
  if (config.qk_norm) {
    workspace.query_statistics.inverse = arena.Take(w.tokens * w.heads);
    workspace.key_statistics.inverse = arena.Take(w.tokens * w.kv_heads);
  }
  if (config.positions == PositionKind::kRope) {
    const int64_t rows = NumRopeRows(config.rope, w.tokens);
    workspace.rope_cos = arena.Take(rows * w.half_head);
    workspace.rope_sin = arena.Take(rows * w.half_head);
  }
  workspace.positions = arena.Take<int32_t>(w.tokens);
}

template <typename Elements>
void PlaceAttention(const DecoderConfig& config, const Widths& w, Arena& arena,
                    WorkspaceOf<Elements>& workspace) {
  workspace.query = arena.TakeActivation<Elements>(w.tokens * w.query);
  workspace.key = arena.TakeActivation<Elements>(w.tokens * w.key);
  workspace.value = arena.TakeActivation<Elements>(w.tokens * w.key);
  if (config.qk_norm) {
    workspace.raw_query = arena.TakeActivation<Elements>(w.tokens * w.query);
    workspace.raw_key = arena.TakeActivation<Elements>(w.tokens * w.key);
  }
  workspace.attended = arena.TakeActivation<Elements>(w.tokens * w.query);
  workspace.log_sum_exp = arena.Take(w.tokens * w.heads);
}

template <typename Elements>
void PlaceMlp(const DecoderConfig& config, const Widths& w, bool training, Arena& arena,
              WorkspaceOf<Elements>& workspace) {
  const bool gated = config.mlp == MlpKind::kSwiGlu;
  if (gated) workspace.gate = arena.TakeActivation<Elements>(w.tokens * w.inner);
  workspace.up = arena.TakeActivation<Elements>(w.tokens * w.inner);
  workspace.activated =
      arena.TakeActivation<Elements>(w.tokens * std::max(w.inner, training ? w.hidden : 0));
  if (!training) return;
  workspace.d_activated = workspace.activated;
  workspace.d_gate = workspace.gate;
  workspace.d_up = gated ? workspace.up : arena.TakeActivation<Elements>(w.tokens * w.inner);
  workspace.d_mlp_normed = workspace.activated;
}

template <typename Elements>
void PlaceAttentionBackward(const Widths& w, Arena& arena, WorkspaceOf<Elements>& workspace) {
  workspace.d_attended = arena.TakeActivation<Elements>(w.tokens * std::max(w.query, w.hidden));
  workspace.d_query = arena.TakeActivation<Elements>(w.tokens * w.query);
  workspace.d_key = arena.TakeActivation<Elements>(w.tokens * w.key);
  workspace.d_value = arena.TakeActivation<Elements>(w.tokens * w.key);
  workspace.d_attention_normed = workspace.d_attended;
  workspace.d_raw_query = workspace.query;
  workspace.d_raw_key = workspace.key;
}

}  // namespace

template <typename Elements>
int64_t PlaceWorkspace(const DecoderConfig& config, const WorkspaceShape& shape, std::byte* base,
                       WorkspaceOf<Elements>& workspace) {
  const Widths w = {shape.max_tokens,
                    config.hidden_size,
                    config.num_heads * config.head_dim,
                    config.num_kv_heads * config.head_dim,
                    config.intermediate_size,
                    config.num_heads,
                    config.num_kv_heads,
                    config.head_dim / 2};
  Arena arena(base, shape.activation_bytes);
  PlaceAlwaysLive(config, w, arena, workspace);
  // Forward, the MLP begins when attention's buffers are dead; backward needs those again after the
  // MLP's.
  const int64_t before_attention = arena.Mark();
  PlaceAttention(config, w, arena, workspace);
  if (!shape.training) arena.Rewind(before_attention);
  const int64_t before_mlp = arena.Mark();
  PlaceMlp(config, w, shape.training, arena, workspace);
  if (shape.training) {
    arena.Rewind(before_mlp);
    PlaceAttentionBackward(w, arena, workspace);
  }
  return arena.peak_bytes();
}
template int64_t PlaceWorkspace(const DecoderConfig&, const WorkspaceShape&, std::byte*,
                                WorkspaceOf<float>&);
template int64_t PlaceWorkspace(const DecoderConfig&, const WorkspaceShape&, std::byte*,
                                WorkspaceOf<void>&);

int64_t PlaceSaved(const DecoderConfig& config, Recompute recompute, int64_t tokens,
                   std::byte* base, DecoderWorkspace& workspace) {
  if (recompute == Recompute::kAll) return 0;
  Arena arena(base, sizeof(float));
  const auto take = [&](int64_t width) {
    constexpr int64_t kAlignElems = 16;  // so that every width is in proportion to the tokens
    return arena.Take(tokens * RoundUp(width, kAlignElems));
  };
  workspace.residual = take(config.hidden_size);
  workspace.up = take(config.intermediate_size);
  if (config.mlp == MlpKind::kSwiGlu) {
    workspace.d_gate = workspace.gate = take(config.intermediate_size);
    workspace.d_up = workspace.up;
  }
  if (recompute == Recompute::kAttention) return arena.peak_bytes();
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  workspace.query = take(query_width);
  workspace.key = take(key_width);
  workspace.value = take(key_width);
  if (config.qk_norm) {
    workspace.raw_query = take(query_width);
    workspace.raw_key = take(key_width);
    workspace.query_statistics.inverse = take(config.num_heads);
    workspace.key_statistics.inverse = take(config.num_kv_heads);
  }
  workspace.d_raw_query = workspace.query;
  workspace.d_raw_key = workspace.key;
  workspace.attended = take(query_width);
  workspace.log_sum_exp = take(config.num_heads);
  return arena.peak_bytes();
}

}  // namespace forebay
