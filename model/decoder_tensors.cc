#include "forebay/model/decoder_tensors.h"

#include <map>

#include "forebay/base/check.h"

namespace forebay {
namespace {

// The tensors of one layer by role.
class LayerRoles {
 public:
  LayerRoles(const Inventory& inventory, int layer) {
    const LayerSpec& spec = inventory.layers()[layer];
    for (int t = spec.first_tensor; t < spec.first_tensor + spec.num_tensors; ++t) {
      const TensorSpec& tensor = inventory.tensors()[t];
      offsets_[tensor.role] = tensor.offset_elems;
    }
  }

  int64_t Find(TensorRole role) const {
    const auto it = offsets_.find(static_cast<int>(role));
    return it == offsets_.end() ? kAbsent : it->second;
  }
  int64_t Require(TensorRole role) const {
    const int64_t offset = Find(role);
    FOREBAY_CHECK(offset != kAbsent);
    return offset;
  }

 private:
  std::map<int, int64_t> offsets_;
};

NormTensors ResolveNorm(const LayerRoles& roles, TensorRole weight, TensorRole bias) {
  return {roles.Require(weight), roles.Find(bias)};
}

// Columns (of [in, out]) or rows (of [out, in]) [first_out, first_out + out) of the fused tensor.
LinearTensors SliceOfFused(const LayerRoles& roles, bool in_out, int64_t in, int64_t fused_out,
                           int64_t first_out, int64_t out) {
  LinearTensors linear;
  linear.weight = roles.Require(TensorRole::kQkv) + (in_out ? first_out : first_out * in);
  const int64_t bias = roles.Find(TensorRole::kQkvBias);
  if (bias != kAbsent) linear.bias = bias + first_out;
  linear.in = in;
  linear.out = out;
  linear.in_out = in_out;
  linear.row_stride = in_out ? fused_out : in;
  return linear;
}

BlockTensors ResolveBlock(const DecoderConfig& config, const LayerRoles& roles) {
  const int64_t hidden = config.hidden_size;
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  const auto linear = [&](TensorRole weight, TensorRole bias, int64_t in, int64_t out) {
    return LinearTensors{roles.Require(weight), roles.Find(bias), in, out, config.linear_in_out, 0};
  };

  BlockTensors block;
  block.attention_norm = ResolveNorm(roles, TensorRole::kAttnNorm, TensorRole::kAttnNormBias);
  block.mlp_norm = ResolveNorm(roles, TensorRole::kMlpNorm, TensorRole::kMlpNormBias);
  if (config.qk_norm) {
    block.query_norm.weight = roles.Require(TensorRole::kQueryNorm);
    block.key_norm.weight = roles.Require(TensorRole::kKeyNorm);
  }
  if (config.fused_qkv) {
    const int64_t fused = query_width + 2 * key_width;
    const auto slice = [&](int64_t first, int64_t out) {
      return SliceOfFused(roles, config.linear_in_out, hidden, fused, first, out);
    };
    block.query = slice(0, query_width);
    block.key = slice(query_width, key_width);
    block.value = slice(query_width + key_width, key_width);
  } else {
    block.query = linear(TensorRole::kQuery, TensorRole::kQueryBias, hidden, query_width);
    block.key = linear(TensorRole::kKey, TensorRole::kKeyBias, hidden, key_width);
    block.value = linear(TensorRole::kValue, TensorRole::kValueBias, hidden, key_width);
  }
  block.attention_out = linear(TensorRole::kAttnOut, TensorRole::kAttnOutBias, query_width, hidden);
  const int64_t inner = config.intermediate_size;
  if (config.mlp == MlpKind::kSwiGlu) {
    block.gate = linear(TensorRole::kGate, TensorRole::kGateBias, hidden, inner);
  }
  block.up = linear(TensorRole::kUp, TensorRole::kUpBias, hidden, inner);
  block.down = linear(TensorRole::kDown, TensorRole::kDownBias, inner, hidden);
  return block;
}

}  // namespace

const void* ElementOf(const LayerWeights& layer, int64_t offset) {
  if (offset == kAbsent) return nullptr;
  FOREBAY_CHECK(offset >= layer.first_elem);
  return layer.data.data() + (offset - layer.first_elem) * SizeOf(layer.dtype);
}

Linear LinearTensors::View(const LayerWeights& layer) const {
  Linear linear;
  linear.dtype = layer.dtype;
  linear.weight = ElementOf(layer, weight);
  linear.bias = ElementOf(layer, bias);
  linear.in = in;
  linear.out = out;
  linear.in_out = in_out;
  linear.row_stride = row_stride;
  return linear;
}

DecoderTensors ResolveTensors(const DecoderConfig& config, const Inventory& inventory) {
  DecoderTensors tensors;
  const LayerRoles embed(inventory, EmbedLayer());
  tensors.token_embedding = embed.Require(TensorRole::kTokenEmbedding);
  if (config.positions == PositionKind::kLearned) {
    tensors.position_embedding = embed.Require(TensorRole::kPositionEmbedding);
  }
  for (int block = 0; block < config.num_layers; ++block) {
    tensors.blocks.push_back(ResolveBlock(config, LayerRoles(inventory, BlockLayer(block))));
  }
  const LayerRoles head(inventory, HeadLayer(config));
  tensors.final_norm = ResolveNorm(head, TensorRole::kFinalNorm, TensorRole::kFinalNormBias);
  tensors.projection.weight =
      config.tied_embeddings ? tensors.token_embedding : head.Require(TensorRole::kLmHead);
  tensors.projection.in = config.hidden_size;
  tensors.projection.out = config.vocab_size;
  return tensors;
}

}  // namespace forebay
