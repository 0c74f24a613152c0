// Where each tensor of a decoder lies: the inventory's roles, resolved once into offsets, so that
// the computation looks nothing up. What a model family does not have is absent here (offset -1),
// and that is all the computation asks.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/operands/linear.h"
#include "forebay/step/param_source.h"

namespace forebay {

inline constexpr int64_t kAbsent = -1;

// Offsets are elements of the layer's flat vector: the same for its weights and for its gradient.
struct NormTensors {
  int64_t weight = kAbsent;
  int64_t bias = kAbsent;  // LayerNorm only
};

// One linear layer; of a fused tensor, a slice (`row_stride` > 0).
struct LinearTensors {
  int64_t weight = kAbsent;
  int64_t bias = kAbsent;
  int64_t in = 0, out = 0;
  bool in_out = false;
  int64_t row_stride = 0;

  bool present() const { return weight != kAbsent; }
  Linear View(const LayerWeights& layer) const;
};

struct BlockTensors {
  NormTensors attention_norm, mlp_norm;
  NormTensors query_norm, key_norm;  // over head_dim; absent unless qk_norm
  LinearTensors query, key, value, attention_out;
  LinearTensors gate, up, down;  // gate: SwiGLU only
};

struct DecoderTensors {
  int64_t token_embedding = kAbsent;
  int64_t position_embedding = kAbsent;  // absent with RoPE
  std::vector<BlockTensors> blocks;
  NormTensors final_norm;
  // In the embedding's layer when embeddings are tied, else in the head's.
  LinearTensors projection;
};

// Requires: `inventory` is BuildInventory(config).
DecoderTensors ResolveTensors(const DecoderConfig& config, const Inventory& inventory);

// Address of element `offset` of a layer's weights; nullptr for kAbsent. Requires: of a piece, that
// it has the element.
const void* ElementOf(const LayerWeights& layer, int64_t offset);
// The same in a gradient vector, or in one of which it has the elements from `first_elem` on.
inline float* ElementOf(std::span<float> gradient, int64_t offset, int64_t first_elem = 0) {
  return offset == kAbsent ? nullptr : gradient.data() + (offset - first_elem);
}

}  // namespace forebay
