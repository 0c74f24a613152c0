// One block, forward and backward. With x its input:
//   x1 = x + out(attention(rope(norm(query(n))), rope(norm(key(n))), value(n))) where n = norm(x)
//   y  = x1 + down(act(gate(m), up(m)))                                         where m = norm(x1)
#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/model/decoder_impl.h"
#include "forebay/model/rope.h"

namespace forebay {

namespace {

// A linear layer of a block, with the gradient of its output and room for its own.
cpu::LinearGradient GradientOf(const LinearTensors& linear, const LayerWeights& weights,
                               const float* dy, std::span<float> gradient) {
  return {linear.View(weights), dy, ElementOf(gradient, linear.weight),
          ElementOf(gradient, linear.bias)};
}

}  // namespace

// A block computes where it saves, for as long as this lives.
class Decoder::InSaved {
 public:
  InSaved(const SavedOfBlock& saved, int64_t tokens, Impl& impl)
      : workspace_(impl.workspace), own_(impl.workspace) {
    FOREBAY_CHECK((saved.memory == nullptr) == (saved.recompute == Recompute::kAll));
    PlaceSaved(impl.config, saved.recompute, tokens, saved.memory, workspace_);
  }
  InSaved(const InSaved&) = delete;
  InSaved& operator=(const InSaved&) = delete;
  ~InSaved() { workspace_ = own_; }

 private:
  DecoderWorkspace& workspace_;
  const DecoderWorkspace own_;
};

void Decoder::Impl::Normalize(const NormTensors& norm, const LayerWeights& weights, const float* x,
                              int64_t rows, int64_t width, float* y,
                              const NormStatistics& statistics) {
  const void* const weight = ElementOf(weights, norm.weight);
  if (statistics.mean == nullptr) {
    cpu::RmsNormForward(context, x, weight, weights.dtype, config.norm_eps, rows, width, y,
                        statistics.inverse);
  } else {
    cpu::LayerNormForward(context, x, weight, ElementOf(weights, norm.bias), weights.dtype,
                          config.norm_eps, rows, width, y, statistics.mean, statistics.inverse);
  }
}

void Decoder::Impl::NormalizeBackward(const NormTensors& norm, const LayerWeights& weights,
                                      const float* x, const NormStatistics& statistics,
                                      const float* dy, int64_t rows, int64_t width, float* dx,
                                      bool accumulate, std::span<float> gradient,
                                      int64_t first_elem) {
  const void* const weight = ElementOf(weights, norm.weight);
  float* const dweight = ElementOf(gradient, norm.weight, first_elem);
  if (statistics.mean == nullptr) {
    cpu::RmsNormBackward(context, x, weight, weights.dtype, statistics.inverse, dy, rows, width, dx,
                         accumulate, dweight);
  } else {
    cpu::LayerNormBackward(context, x, weight, weights.dtype, statistics.mean, statistics.inverse,
                           dy, rows, width, dx, accumulate, dweight,
                           ElementOf(gradient, norm.bias, first_elem));
  }
}

BlockInput Decoder::Impl::InputOf(const MicroBatch& batch) const {
  BlockInput input;
  input.tokens = static_cast<int64_t>(batch.tokens.size());
  FOREBAY_CHECK(input.tokens <= options.max_tokens);
  if (config.positions != PositionKind::kRope) return input;
  input.rope = RopeTableOfBatches();
  FOREBAY_CHECK(batch.positions.size() == batch.tokens.size());
  int32_t* const rows = workspace.positions;
  input.positions = {rows, batch.positions.size()};
  std::ranges::copy(batch.positions, rows);
  for (const Segment& segment : batch.segments) {
    const auto first_row = static_cast<int32_t>(FirstRopeRow(config.rope, segment.length));
    for (int64_t i = 0; i < segment.length; ++i) rows[segment.begin + i] += first_row;
  }
  return input;
}

cpu::RopeTable Decoder::Impl::RopeTableOfBatches() const {
  const size_t size = NumRopeRows(config.rope, options.max_tokens) * (config.head_dim / 2);
  return {{workspace.rope_cos, size}, {workspace.rope_sin, size}, config.head_dim};
}

int64_t Decoder::Impl::WindowOf(int block) const {
  return config.window.empty() ? 0 : config.window[block];
}

cpu::AttentionShape Decoder::Impl::AttentionOf(int block, const MicroBatch& batch) const {
  cpu::AttentionShape shape;
  shape.tokens = static_cast<int64_t>(batch.tokens.size());
  shape.heads = config.num_heads;
  shape.kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.window = WindowOf(block);
  shape.segments = batch.segments;
  return shape;
}

void Decoder::Impl::ProjectQkv(const BlockTensors& block, const LayerWeights& weights,
                               const BlockInput& input, const float* x, float* key, float* value) {
  const int64_t tokens = input.tokens;
  float* const query = workspace.query;
  float* const raw_query = config.qk_norm ? workspace.raw_query : query;
  float* const raw_key = config.qk_norm ? workspace.raw_key : key;
  Normalize(block.attention_norm, weights, x, tokens, config.hidden_size, workspace.normed,
            workspace.attention_statistics);
  const cpu::LinearOutput projections[] = {{block.query.View(weights), raw_query},
                                           {block.key.View(weights), raw_key},
                                           {block.value.View(weights), value}};
  cpu::LinearForward(context, projections, workspace.normed, tokens);
  if (config.qk_norm) {
    Normalize(block.query_norm, weights, raw_query, tokens * config.num_heads, config.head_dim,
              query, workspace.query_statistics);
    Normalize(block.key_norm, weights, raw_key, tokens * config.num_kv_heads, config.head_dim, key,
              workspace.key_statistics);
  }
  if (config.positions == PositionKind::kRope) {
    cpu::Rope(context, input.rope, input.positions, config.num_heads, query, /*inverse=*/false);
    cpu::Rope(context, input.rope, input.positions, config.num_kv_heads, key, /*inverse=*/false);
  }
}

void Decoder::Impl::ProjectMlp(const BlockTensors& block, const LayerWeights& weights,
                               int64_t tokens) {
  cpu::LinearOutput projections[2] = {{block.up.View(weights), workspace.up}, {}};
  size_t count = 1;
  if (config.mlp == MlpKind::kSwiGlu) {
    projections[count++] = {block.gate.View(weights), workspace.gate};
  }
  cpu::LinearForward(context, {projections, count}, workspace.normed, tokens);
}

void Decoder::Impl::ActivateMlp(int64_t tokens) {
  const int64_t count = tokens * config.intermediate_size;
  if (config.mlp == MlpKind::kSwiGlu) {
    cpu::SwiGluForward(context, workspace.gate, workspace.up, count, workspace.activated);
  } else {
    cpu::GeluTanhForward(context, workspace.up, count, workspace.activated);
  }
}

void Decoder::Impl::FinishBlock(const BlockTensors& block, const LayerWeights& weights,
                                int64_t tokens, float* x, float* between) {
  cpu::LinearForward(context, block.attention_out.View(weights), workspace.attended, tokens, x,
                     /*accumulate=*/true);
  if (between != nullptr) std::copy_n(x, tokens * config.hidden_size, between);
  Normalize(block.mlp_norm, weights, x, tokens, config.hidden_size, workspace.normed,
            workspace.mlp_statistics);
  ProjectMlp(block, weights, tokens);
  ActivateMlp(tokens);
  cpu::LinearForward(context, block.down.View(weights), workspace.activated, tokens, x,
                     /*accumulate=*/true);
}

void Decoder::ForwardBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                           std::span<float> x, const SavedOfBlock& saved) {
  Impl& impl = *impl_;
  const BlockTensors& tensors = impl.tensors.blocks[block];
  const BlockInput input = impl.InputOf(batch);
  FOREBAY_CHECK(static_cast<int64_t>(x.size()) == input.tokens * impl.config.hidden_size);
  const InSaved in_saved(saved, input.tokens, impl);
  const DecoderWorkspace& workspace = impl.workspace;
  impl.ProjectQkv(tensors, weights, input, x.data(), workspace.key, workspace.value);
  cpu::AttentionForward(impl.context, impl.AttentionOf(block, batch), workspace.query,
                        workspace.key, workspace.value, workspace.attended, workspace.log_sum_exp);
  impl.FinishBlock(tensors, weights, input.tokens, x.data(),
                   saved.recompute == Recompute::kAll ? nullptr : workspace.residual);
}

void Decoder::Impl::ComputeAgain(Recompute recompute, int block, const LayerWeights& weights,
                                 const MicroBatch& batch, const float* x) {
  const BlockTensors& block_tensors = tensors.blocks[block];
  const BlockInput input = InputOf(batch);
  if (recompute != Recompute::kNone) {
    ProjectQkv(block_tensors, weights, input, x, workspace.key, workspace.value);
    cpu::AttentionForward(context, AttentionOf(block, batch), workspace.query, workspace.key,
                          workspace.value, workspace.attended, workspace.log_sum_exp);
  }
  if (recompute == Recompute::kAll) {
    std::copy_n(x, input.tokens * config.hidden_size, workspace.residual);
    cpu::LinearForward(context, block_tensors.attention_out.View(weights), workspace.attended,
                       input.tokens, workspace.residual, /*accumulate=*/true);
  }
  Normalize(block_tensors.mlp_norm, weights, workspace.residual, input.tokens, config.hidden_size,
            workspace.normed, workspace.mlp_statistics);
  if (recompute == Recompute::kAll) ProjectMlp(block_tensors, weights, input.tokens);
  ActivateMlp(input.tokens);
}

void Decoder::Impl::BackwardMlp(const BlockTensors& block, const LayerWeights& weights,
                                int64_t tokens, float* dx, std::span<float> gradient) {
  const int64_t count = tokens * config.intermediate_size;
  const bool gated = config.mlp == MlpKind::kSwiGlu;
  const cpu::LinearGradient down = GradientOf(block.down, weights, dx, gradient);
  cpu::LinearBackward(context, {&down, 1}, workspace.activated, tokens, workspace.d_activated);
  if (gated) {
    cpu::SwiGluBackward(context, workspace.gate, workspace.up, workspace.d_activated, count,
                        workspace.d_gate, workspace.d_up);
  } else {
    cpu::GeluTanhBackward(context, workspace.up, workspace.d_activated, count, workspace.d_up);
  }
  cpu::LinearGradient projections[2] = {GradientOf(block.up, weights, workspace.d_up, gradient),
                                        {}};
  size_t num_projections = 1;
  if (gated) {
    projections[num_projections++] = GradientOf(block.gate, weights, workspace.d_gate, gradient);
  }
  cpu::LinearBackward(context, {projections, num_projections}, workspace.normed, tokens,
                      workspace.d_mlp_normed);
  NormalizeBackward(block.mlp_norm, weights, workspace.residual, workspace.mlp_statistics,
                    workspace.d_mlp_normed, tokens, config.hidden_size, dx, /*accumulate=*/true,
                    gradient);
}

void Decoder::Impl::BackwardRotation(const BlockTensors& block, const LayerWeights& weights,
                                     const BlockInput& input, std::span<float> gradient) {
  if (config.positions == PositionKind::kRope) {
    cpu::Rope(context, input.rope, input.positions, config.num_heads, workspace.d_query,
              /*inverse=*/true);
    cpu::Rope(context, input.rope, input.positions, config.num_kv_heads, workspace.d_key,
              /*inverse=*/true);
  }
  if (config.qk_norm) {
    NormalizeBackward(block.query_norm, weights, workspace.raw_query, workspace.query_statistics,
                      workspace.d_query, input.tokens * config.num_heads, config.head_dim,
                      workspace.d_raw_query, /*accumulate=*/false, gradient);
    NormalizeBackward(block.key_norm, weights, workspace.raw_key, workspace.key_statistics,
                      workspace.d_key, input.tokens * config.num_kv_heads, config.head_dim,
                      workspace.d_raw_key, /*accumulate=*/false, gradient);
  }
}

void Decoder::Impl::BackwardAttention(int block, const LayerWeights& weights,
                                      const MicroBatch& batch, const float* x, float* dx,
                                      std::span<float> gradient) {
  const BlockTensors& block_tensors = tensors.blocks[block];
  const BlockInput input = InputOf(batch);
  const int64_t tokens = input.tokens;
  const cpu::LinearGradient out = GradientOf(block_tensors.attention_out, weights, dx, gradient);
  cpu::LinearBackward(context, {&out, 1}, workspace.attended, tokens, workspace.d_attended);
  cpu::AttentionBackward(context, AttentionOf(block, batch), workspace.query, workspace.key,
                         workspace.value, workspace.attended, workspace.log_sum_exp,
                         workspace.d_attended, workspace.d_query, workspace.d_key,
                         workspace.d_value);
  BackwardRotation(block_tensors, weights, input, gradient);

  // `normed` holds the MLP's input by now: attention's is made again, which costs less than its
  // memory.
  Normalize(block_tensors.attention_norm, weights, x, tokens, config.hidden_size, workspace.normed,
            workspace.attention_statistics);
  float* const d_query = config.qk_norm ? workspace.d_raw_query : workspace.d_query;
  float* const d_key = config.qk_norm ? workspace.d_raw_key : workspace.d_key;
  const cpu::LinearGradient projections[] = {
      GradientOf(block_tensors.query, weights, d_query, gradient),
      GradientOf(block_tensors.key, weights, d_key, gradient),
      GradientOf(block_tensors.value, weights, workspace.d_value, gradient)};
  cpu::LinearBackward(context, projections, workspace.normed, tokens, workspace.d_attention_normed);
  NormalizeBackward(block_tensors.attention_norm, weights, x, workspace.attention_statistics,
                    workspace.d_attention_normed, tokens, config.hidden_size, dx,
                    /*accumulate=*/true, gradient);
}

void Decoder::RecomputeBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                             std::span<const float> x, const SavedOfBlock& saved) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.options.training);
  FOREBAY_CHECK(x.size() == batch.tokens.size() * impl.config.hidden_size);
  const InSaved in_saved(saved, std::ssize(batch.tokens), impl);
  impl.ComputeAgain(saved.recompute, block, weights, batch, x.data());
}

void Decoder::BackwardBlock(int block, const LayerWeights& weights, const MicroBatch& batch,
                            std::span<const float> x, std::span<float> dx,
                            std::span<float> gradient, const SavedOfBlock& saved) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.options.training);
  FOREBAY_CHECK(x.size() == batch.tokens.size() * impl.config.hidden_size && dx.size() == x.size());
  const InSaved in_saved(saved, std::ssize(batch.tokens), impl);
  impl.BackwardMlp(impl.tensors.blocks[block], weights, batch.tokens.size(), dx.data(), gradient);
  impl.BackwardAttention(block, weights, batch, x.data(), dx.data(), gradient);
}

}  // namespace forebay
