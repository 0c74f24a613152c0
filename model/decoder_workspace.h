// The memory that a decoder computes in: every activation of one block, placed by hand so that
// buffers whose lives do not overlap share bytes. One function counts and places, so that what the
// planner charges is what is used.
#pragma once

#include <cstdint>

#include "forebay/model/decoder.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// What the normalisation of `rows` leaves for its backward pass.
struct NormStatistics {
  float* mean = nullptr;  // LayerNorm only
  float* inverse = nullptr;
};

// All fp32, row-major, [max_tokens, width], with the width named behind each field: query = heads *
// head_dim, key = kv_heads * head_dim. nullptr: the model, or evaluation, has no use for it.
struct DecoderWorkspace {
  // hidden. In backward x between attention and MLP; in generation x itself.
  float* residual = nullptr;
  float* normed = nullptr;  // hidden: input of attention's projections, then of the MLP
  // 1. Attention's serve the final norm too.
  NormStatistics attention_statistics, mlp_statistics;

  float* query = nullptr;           // query
  float* key = nullptr;             // key
  float* value = nullptr;           // key
  float* raw_query = nullptr;       // query: before the q/k norms
  float* raw_key = nullptr;         // key
  NormStatistics query_statistics;  // heads
  NormStatistics key_statistics;    // kv_heads
  float* attended = nullptr;        // query
  float* log_sum_exp = nullptr;     // heads

  float* gate = nullptr;       // intermediate, SwiGLU only
  float* up = nullptr;         // intermediate
  float* activated = nullptr;  // intermediate

  // Gradients, each with whose bytes it takes and from when on.
  float* d_activated = nullptr;   // intermediate: activated's, once `down` has its gradient
  float* d_gate = nullptr;        // intermediate: gate's, element by element
  float* d_up = nullptr;          // intermediate: up's, element by element; with GELU its own
  float* d_mlp_normed = nullptr;  // hidden: activated's, once d_gate and d_up are made
  // The next five: the MLP's, once its backward pass is done.
  float* d_attended = nullptr;          // query
  float* d_query = nullptr;             // query
  float* d_key = nullptr;               // key
  float* d_value = nullptr;             // key
  float* d_attention_normed = nullptr;  // hidden: d_attended's, once attention is differentiated
  float* d_raw_query = nullptr;         // query: query's, likewise
  float* d_raw_key = nullptr;           // key: key's, likewise

  float* rope_cos = nullptr;  // [max_tokens, head_dim / 2], with RoPE
  float* rope_sin = nullptr;
  int32_t* positions = nullptr;  // [max_tokens], for generation
};

// Places every buffer from `base` on (64-byte aligned) and returns the bytes they take together.
// nullptr: only counts.
int64_t PlaceWorkspace(const DecoderConfig& config, const DecoderOptions& options, std::byte* base,
                       DecoderWorkspace& workspace);

}  // namespace forebay
