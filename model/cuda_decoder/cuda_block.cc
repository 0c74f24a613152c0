#include "forebay/model/cuda_decoder/cuda_block.h"

#include "forebay/base/errors.h"

namespace forebay {

CudaBlock::CudaBlock(const DecoderConfig& config, cuda::Context* context,
                     const CudaWorkspace& workspace)
    : config_(config), context_(*context), workspace_(workspace) {}

absl::Status CudaBlock::Normalize(const NormTensors& norm, const LayerWeights& weights,
                                  const void* x, int64_t rows, int64_t width, void* y,
                                  const NormStatistics& statistics) {
  const void* const weight = ElementOf(weights, norm.weight);
  if (statistics.mean == nullptr) {
    return cuda::RmsNormForward(context_, x, weight, config_.norm_eps, rows, width, y,
                                statistics.inverse);
  }
  return cuda::LayerNormForward(context_, x, weight, ElementOf(weights, norm.bias),
                                config_.norm_eps, rows, width, y, statistics.mean,
                                statistics.inverse);
}

absl::Status CudaBlock::NormalizeBackward(const NormTensors& norm, const LayerWeights& weights,
                                          const void* x, const NormStatistics& statistics,
                                          const void* dy, int64_t rows, int64_t width, void* dx,
                                          bool accumulate, std::span<float> gradient,
                                          int64_t first_elem) {
  const void* const weight = ElementOf(weights, norm.weight);
  float* const dweight = ElementOf(gradient, norm.weight, first_elem);
  if (statistics.mean == nullptr) {
    return cuda::RmsNormBackward(context_, x, weight, statistics.inverse, dy, rows, width, dx,
                                 accumulate, dweight);
  }
  return cuda::LayerNormBackward(context_, x, weight, statistics.mean, statistics.inverse, dy, rows,
                                 width, dx, accumulate, dweight,
                                 ElementOf(gradient, norm.bias, first_elem));
}

cuda::AttentionShape CudaBlock::AttentionOf(int block, const DeviceBatch& batch) const {
  return {.tokens = batch.tokens,
          .heads = config_.num_heads,
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .window = config_.window.empty() ? 0 : config_.window[block],
          .segment_begin = batch.segment_begin,
          .segment_end = batch.segment_end};
}

absl::Status CudaBlock::Rotate(const DeviceBatch& batch, void* query, void* key, bool inverse) {
  if (config_.positions != PositionKind::kRope) return absl::OkStatus();
  const cuda::RopeTable table = {workspace_.rope_cos, workspace_.rope_sin, config_.head_dim};
  FOREBAY_RETURN_IF_ERROR(
      cuda::Rope(context_, table, batch.position, batch.tokens, config_.num_heads, query, inverse));
  return cuda::Rope(context_, table, batch.position, batch.tokens, config_.num_kv_heads, key,
                    inverse);
}

// ---- Forward ------------------------------------------------------------------------------------

absl::Status CudaBlock::ProjectQkv(const BlockTensors& tensors, const LayerWeights& weights,
                                   const DeviceBatch& batch, const void* x) {
  const CudaWorkspace& w = workspace_;
  const int64_t tokens = batch.tokens;
  void* const raw_query = config_.qk_norm ? w.raw_query : w.query;
  void* const raw_key = config_.qk_norm ? w.raw_key : w.key;
  FOREBAY_RETURN_IF_ERROR(Normalize(tensors.attention_norm, weights, x, tokens, config_.hidden_size,
                                    w.normed, w.attention_statistics));
  const auto project = [&](const LinearTensors& linear, void* y) {
    return cuda::LinearForward(context_, linear.View(weights), w.normed, tokens, y);
  };
  FOREBAY_RETURN_IF_ERROR(project(tensors.query, raw_query));
  FOREBAY_RETURN_IF_ERROR(project(tensors.key, raw_key));
  FOREBAY_RETURN_IF_ERROR(project(tensors.value, w.value));
  if (config_.qk_norm) {
    FOREBAY_RETURN_IF_ERROR(Normalize(tensors.query_norm, weights, raw_query,
                                      tokens * config_.num_heads, config_.head_dim, w.query,
                                      w.query_statistics));
    FOREBAY_RETURN_IF_ERROR(Normalize(tensors.key_norm, weights, raw_key,
                                      tokens * config_.num_kv_heads, config_.head_dim, w.key,
                                      w.key_statistics));
  }
  return Rotate(batch, w.query, w.key, /*inverse=*/false);
}

absl::Status CudaBlock::AttendInSegments(int block, const DeviceBatch& batch) {
  const CudaWorkspace& w = workspace_;
  return cuda::AttentionForward(context_, AttentionOf(block, batch), w.query, w.key, w.value,
                                w.attended, w.log_sum_exp);
}

// out = x + attention's. They may be one buffer.
absl::Status CudaBlock::Attend(AttendCall attend, const BlockTensors& tensors,
                               const LayerWeights& weights, const DeviceBatch& batch, const void* x,
                               void* out) {
  const CudaWorkspace& w = workspace_;
  FOREBAY_RETURN_IF_ERROR(ProjectQkv(tensors, weights, batch, x));
  FOREBAY_RETURN_IF_ERROR(attend());
  if (out != x) {
    FOREBAY_RETURN_IF_ERROR(context_.stream().CopyOnDevice(
        out, x, batch.tokens * config_.hidden_size * SizeOf(context_.dtype())));
  }
  return cuda::LinearForward(context_, tensors.attention_out.View(weights), w.attended,
                             batch.tokens, out, /*accumulate=*/true);
}

absl::Status CudaBlock::ActivateMlp(const BlockTensors& tensors, const LayerWeights& weights,
                                    int64_t tokens) {
  const CudaWorkspace& w = workspace_;
  const int64_t count = tokens * config_.intermediate_size;
  FOREBAY_RETURN_IF_ERROR(
      cuda::LinearForward(context_, tensors.up.View(weights), w.normed, tokens, w.up));
  if (config_.mlp != MlpKind::kSwiGlu) {
    return cuda::GeluTanhForward(context_, w.up, count, w.activated);
  }
  FOREBAY_RETURN_IF_ERROR(
      cuda::LinearForward(context_, tensors.gate.View(weights), w.normed, tokens, w.gate));
  return cuda::SwiGluForward(context_, w.gate, w.up, count, w.activated);
}

absl::Status CudaBlock::Forward(int block, const BlockTensors& tensors, const LayerWeights& weights,
                                const DeviceBatch& batch, const void* x, void* out) {
  return ForwardWith([&] { return AttendInSegments(block, batch); }, tensors, weights, batch, x,
                     out);
}

absl::Status CudaBlock::ForwardWith(AttendCall attend, const BlockTensors& tensors,
                                    const LayerWeights& weights, const DeviceBatch& batch,
                                    const void* x, void* out) {
  const CudaWorkspace& w = workspace_;
  FOREBAY_RETURN_IF_ERROR(Attend(attend, tensors, weights, batch, x, out));
  FOREBAY_RETURN_IF_ERROR(Normalize(tensors.mlp_norm, weights, out, batch.tokens,
                                    config_.hidden_size, w.normed, w.mlp_statistics));
  FOREBAY_RETURN_IF_ERROR(ActivateMlp(tensors, weights, batch.tokens));
  return cuda::LinearForward(context_, tensors.down.View(weights), w.activated, batch.tokens, out,
                             /*accumulate=*/true);
}

absl::Status CudaBlock::Recompute(int block, const BlockTensors& tensors,
                                  const LayerWeights& weights, const DeviceBatch& batch,
                                  const void* x) {
  const CudaWorkspace& w = workspace_;
  FOREBAY_RETURN_IF_ERROR(Attend([&] { return AttendInSegments(block, batch); }, tensors, weights,
                                 batch, x, w.residual));
  FOREBAY_RETURN_IF_ERROR(Normalize(tensors.mlp_norm, weights, w.residual, batch.tokens,
                                    config_.hidden_size, w.normed, w.mlp_statistics));
  return ActivateMlp(tensors, weights, batch.tokens);
}

// ---- Backward -----------------------------------------------------------------------------------

absl::Status CudaBlock::LinearBackward(const LinearTensors& linear, const LayerWeights& weights,
                                       const void* x, const void* dy, int64_t tokens, void* dx,
                                       bool accumulate, std::span<float> gradient) {
  const Linear view = linear.View(weights);
  FOREBAY_RETURN_IF_ERROR(cuda::LinearBackwardWeight(context_, view, x, dy, tokens,
                                                     ElementOf(gradient, linear.weight),
                                                     ElementOf(gradient, linear.bias)));
  return cuda::LinearBackwardInput(context_, view, dy, tokens, dx, accumulate);
}

absl::Status CudaBlock::BackwardMlp(const BlockTensors& tensors, const LayerWeights& weights,
                                    int64_t tokens, void* dx, std::span<float> gradient) {
  const CudaWorkspace& w = workspace_;
  const int64_t count = tokens * config_.intermediate_size;
  // `d_activated` takes the place of `activated`, which the weight's gradient has read by then.
  FOREBAY_RETURN_IF_ERROR(LinearBackward(tensors.down, weights, w.activated, dx, tokens,
                                         w.d_activated, /*accumulate=*/false, gradient));
  if (config_.mlp == MlpKind::kSwiGlu) {
    FOREBAY_RETURN_IF_ERROR(
        cuda::SwiGluBackward(context_, w.gate, w.up, w.d_activated, count, w.d_gate, w.d_up));
  } else {
    FOREBAY_RETURN_IF_ERROR(cuda::GeluTanhBackward(context_, w.up, w.d_activated, count, w.d_up));
  }
  FOREBAY_RETURN_IF_ERROR(LinearBackward(tensors.up, weights, w.normed, w.d_up, tokens,
                                         w.d_mlp_normed, /*accumulate=*/false, gradient));
  if (config_.mlp == MlpKind::kSwiGlu) {
    FOREBAY_RETURN_IF_ERROR(LinearBackward(tensors.gate, weights, w.normed, w.d_gate, tokens,
                                           w.d_mlp_normed, /*accumulate=*/true, gradient));
  }
  return NormalizeBackward(tensors.mlp_norm, weights, w.residual, w.mlp_statistics, w.d_mlp_normed,
                           tokens, config_.hidden_size, dx, /*accumulate=*/true, gradient);
}

absl::Status CudaBlock::BackwardHeads(const BlockTensors& tensors, const LayerWeights& weights,
                                      const DeviceBatch& batch, std::span<float> gradient) {
  const CudaWorkspace& w = workspace_;
  FOREBAY_RETURN_IF_ERROR(Rotate(batch, w.d_query, w.d_key, /*inverse=*/true));
  if (!config_.qk_norm) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(NormalizeBackward(tensors.query_norm, weights, w.raw_query,
                                            w.query_statistics, w.d_query,
                                            batch.tokens * config_.num_heads, config_.head_dim,
                                            w.d_raw_query, /*accumulate=*/false, gradient));
  return NormalizeBackward(tensors.key_norm, weights, w.raw_key, w.key_statistics, w.d_key,
                           batch.tokens * config_.num_kv_heads, config_.head_dim, w.d_raw_key,
                           /*accumulate=*/false, gradient);
}

absl::Status CudaBlock::BackwardAttention(int block, const BlockTensors& tensors,
                                          const LayerWeights& weights, const DeviceBatch& batch,
                                          const void* x, void* dx, std::span<float> gradient) {
  const CudaWorkspace& w = workspace_;
  const int64_t tokens = batch.tokens;
  FOREBAY_RETURN_IF_ERROR(LinearBackward(tensors.attention_out, weights, w.attended, dx, tokens,
                                         w.d_attended, /*accumulate=*/false, gradient));
  FOREBAY_RETURN_IF_ERROR(cuda::AttentionBackward(context_, AttentionOf(block, batch), w.query,
                                                  w.key, w.value, w.attended, w.log_sum_exp,
                                                  w.d_attended, w.d_query, w.d_key, w.d_value));
  FOREBAY_RETURN_IF_ERROR(BackwardHeads(tensors, weights, batch, gradient));

  // `normed` holds the MLP's input by now: attention's is made again, which costs less than its
  // memory.
  FOREBAY_RETURN_IF_ERROR(Normalize(tensors.attention_norm, weights, x, tokens, config_.hidden_size,
                                    w.normed, w.attention_statistics));
  const auto project = [&](const LinearTensors& linear, const void* dy, bool accumulate) {
    return LinearBackward(linear, weights, w.normed, dy, tokens, w.d_attention_normed, accumulate,
                          gradient);
  };
  FOREBAY_RETURN_IF_ERROR(project(tensors.query, config_.qk_norm ? w.d_raw_query : w.d_query,
                                  /*accumulate=*/false));
  FOREBAY_RETURN_IF_ERROR(
      project(tensors.key, config_.qk_norm ? w.d_raw_key : w.d_key, /*accumulate=*/true));
  FOREBAY_RETURN_IF_ERROR(project(tensors.value, w.d_value, /*accumulate=*/true));
  return NormalizeBackward(tensors.attention_norm, weights, x, w.attention_statistics,
                           w.d_attention_normed, tokens, config_.hidden_size, dx,
                           /*accumulate=*/true, gradient);
}

absl::Status CudaBlock::Backward(int block, const BlockTensors& tensors,
                                 const LayerWeights& weights, const DeviceBatch& batch,
                                 const void* x, void* dx, std::span<float> gradient) {
  FOREBAY_RETURN_IF_ERROR(BackwardMlp(tensors, weights, batch.tokens, dx, gradient));
  return BackwardAttention(block, tensors, weights, batch, x, dx, gradient);
}

}  // namespace forebay
