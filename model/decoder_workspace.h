// The memory that a decoder computes in: every activation of one block, placed by hand so that
// buffers whose lives do not overlap share bytes. One function counts and places, so that what the
// planner charges is what is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forebay/model/decoder_config.h"
#include "forebay/model/recompute.h"

namespace forebay {

// What the normalisation of `rows` leaves for its backward pass.
struct NormStatistics {
  float* mean = nullptr;  // LayerNorm only
  float* inverse = nullptr;
};

// Activations and their gradients, row-major, [max_tokens, width], with the width named behind each
// field: query = heads * head_dim, key = kv_heads * head_dim. nullptr: the model, or evaluation,
// has no use for it. On the CPU they are fp32 (Elements: float); on a GPU void, and of the type
// that the computation has.
template <typename Elements>
struct WorkspaceOf {
  // hidden. In backward x between attention and MLP; in generation x itself.
  Elements* residual = nullptr;
  Elements* normed = nullptr;  // hidden: input of attention's projections, then of the MLP
  // 1. Attention's serve the final norm too.
  NormStatistics attention_statistics, mlp_statistics;

  Elements* query = nullptr;        // query
  Elements* key = nullptr;          // key
  Elements* value = nullptr;        // key
  Elements* raw_query = nullptr;    // query: before the q/k norms
  Elements* raw_key = nullptr;      // key
  NormStatistics query_statistics;  // heads
  NormStatistics key_statistics;    // kv_heads
  Elements* attended = nullptr;     // query
  float* log_sum_exp = nullptr;     // heads, fp32

  Elements* gate = nullptr;       // intermediate, SwiGLU only
  Elements* up = nullptr;         // intermediate
  Elements* activated = nullptr;  // intermediate

  // Gradients, each with whose bytes it takes and from when on.
  Elements* d_activated = nullptr;   // intermediate: activated's, once `down` has its gradient
  Elements* d_gate = nullptr;        // intermediate: gate's, element by element
  Elements* d_up = nullptr;          // intermediate: up's, element by element; with GELU its own
  Elements* d_mlp_normed = nullptr;  // hidden: activated's, once d_gate and d_up are made
  // The next five: the MLP's, once its backward pass is done.
  Elements* d_attended = nullptr;          // query
  Elements* d_query = nullptr;             // query
  Elements* d_key = nullptr;               // key
  Elements* d_value = nullptr;             // key
  Elements* d_attention_normed = nullptr;  // hidden: d_attended's, once attention is differentiated
  Elements* d_raw_query = nullptr;         // query: query's, likewise
  Elements* d_raw_key = nullptr;           // key: key's, likewise

  float* rope_cos = nullptr;  // [NumRopeRows, head_dim / 2], with RoPE
  float* rope_sin = nullptr;
  int32_t* positions = nullptr;  // [max_tokens], rows of the tables of positions
};

using DecoderWorkspace = WorkspaceOf<float>;

struct WorkspaceShape {
  int64_t max_tokens = 0;
  bool training = true;          // with the buffers of the backward pass
  int64_t activation_bytes = 4;  // of an element
};

// Places every buffer from `base` on (64-byte aligned) and returns the bytes they take together.
// nullptr: only counts. `base` is not touched: it may be an address on a GPU.
template <typename Elements>
int64_t PlaceWorkspace(const DecoderConfig& config, const WorkspaceShape& shape, std::byte* base,
                       WorkspaceOf<Elements>& workspace);

// Places what a block of `tokens` saves of its forward pass from `base` on (64-byte aligned), in
// place of the buffers that `workspace` has for all blocks. Returns the bytes that this takes, in
// proportion to `tokens`; 0 with kAll. nullptr: only counts.
int64_t PlaceSaved(const DecoderConfig& config, Recompute recompute, int64_t tokens,
                   std::byte* base, DecoderWorkspace& workspace);

}  // namespace forebay
