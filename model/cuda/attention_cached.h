// Attention of generation: new tokens of several sequences, each over the keys and values of its
// own sequence, which a cache holds.
//
// Not for training, nor for what attends to nothing that is cached: AttentionForward (ops.h) reads
// each key once for many queries, this once for each.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/model/cuda/ops.h"

namespace forebay::cuda {

// A cache is [rows, kv_heads, head_dim] of keys and the same of values, of the context's type. A
// sequence has consecutive rows, by position.
struct CachedTokens {
  int64_t tokens = 0;
  const int32_t* position = nullptr;  // [tokens], in its sequence
  const int32_t* row = nullptr;  // [tokens], in the cache: that of position 0 is `position` before
};

// to[row[i]] = from[i]; from: [tokens, width], to: [rows, width]. Requires: rows of a multiple of 4
// bytes, no row twice.
absl::Status AppendToCache(Context& context, const CachedTokens& tokens, int64_t width,
                           const void* from, void* to);

struct CachedAttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: even, at most 256
  int64_t window = 0;                             // as AttentionShape has it
};
// q, o: [tokens, heads, head_dim]. A token attends to what is cached of its sequence up to its own
// position, its own key with it. The bits do not depend on what other tokens there are.
absl::Status AttentionCached(Context& context, const CachedAttentionShape& shape,
                             const CachedTokens& tokens, const void* q, const void* keys,
                             const void* values, void* o);

}  // namespace forebay::cuda
