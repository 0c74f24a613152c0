// A decoder-only language model as its config.json describes it. One table of families (families.h)
// maps each architecture's spelling onto these fields; nothing else in forebay knows an
// architecture's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/json.h"
#include "forebay/base/tensor_spec.h"

namespace forebay {

enum class NormKind : uint8_t { kRms, kLayer };
enum class MlpKind : uint8_t {
  kSwiGlu,    // down(silu(gate(x)) * up(x))
  kGeluTanh,  // down(gelu_tanh(up(x)))
};
enum class PositionKind : uint8_t { kRope, kLearned };
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope, kProportional };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // llama3, yarn and longrope
  int64_t original_max_positions = 0;
  // yarn and longrope
  double attention_factor =
      0.0;  // 0: computed from factor (yarn: mscale and mscale_all_dim too) as transformers does
  // longrope: what divides the frequency of each pair, in a sequence of at most
  // original_max_positions tokens, and in a longer one. [head_dim / 2]
  std::vector<double> short_factors, long_factors;
  // proportional: the first pairs, which turn; others do not
  double rotated_share = 1.0;
  // yarn
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;
};

struct DecoderConfig {
  std::string architecture;  // "LlamaForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-5;
  NormKind norm = NormKind::kRms;
  MlpKind mlp = MlpKind::kSwiGlu;
  PositionKind positions = PositionKind::kRope;
  RopeConfig rope;
  bool tied_embeddings = false;
  bool fused_qkv = false;      // one tensor for q, k and v (GPT-2's c_attn)
  bool linear_in_out = false;  // linear weights stored [in, out] (GPT-2's Conv1D), else [out, in]
  bool qkv_bias = false;
  bool out_bias = false;  // attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim of q and k, before RoPE
  std::vector<int64_t>
      window;  // per layer: keys visible to a query including itself; 0 = all before it
  double initializer_range = 0.02;
  DType dtype = DType::kBF16;  // of the checkpoint, as config.json says
  std::vector<int64_t>
      eos_token_ids;  // config.json's; generation_config.json's take precedence for stopping
  int64_t bos_token_id = -1;
};

// What a tensor is in the model: TensorSpec::role.
enum class TensorRole : int {
  kTokenEmbedding,     // [vocab, hidden]
  kPositionEmbedding,  // [max_positions, hidden]
  kAttnNorm,
  kAttnNormBias,
  kQuery,
  kQueryBias,
  kKey,
  kKeyBias,
  kValue,
  kValueBias,
  kQkv,
  kQkvBias,  // fused: [hidden, 3 * hidden] in [in, out] order
  kQueryNorm,
  kKeyNorm,  // [head_dim]
  kAttnOut,
  kAttnOutBias,
  kMlpNorm,
  kMlpNormBias,
  kGate,
  kGateBias,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kFinalNorm,
  kFinalNormBias,
  kLmHead,  // [vocab, hidden]; absent when tied
};

// Parses config.json (both spellings: rope_theta/rope_scaling/torch_dtype, and
// rope_parameters/dtype). `source` names the file in errors. BadInputError that names the key, what
// was read and what is supported.
absl::StatusOr<DecoderConfig> ParseDecoderConfig(const Json& json, std::string_view source);
absl::StatusOr<DecoderConfig> ReadDecoderConfig(const std::string& model_directory);
// `path`: the folder of a model, or its config.json alone.
absl::StatusOr<DecoderConfig> ReadDecoderConfigAt(const std::string& path);

// Layers in order: 0 "embed"; 1..num_layers "layers.<i>"; num_layers+1 "head" (final norm, and the
// output projection when it is not tied).
Inventory BuildInventory(const DecoderConfig& config);
inline int EmbedLayer() {
  return 0;
}
inline int BlockLayer(int block) {
  return 1 + block;
}
inline int HeadLayer(const DecoderConfig& config) {
  return 1 + config.num_layers;
}

// One layer's activation of so many tokens, in `dtype`: all that a pass needs that keeps none.
inline int64_t ForwardBytes(const DecoderConfig& config, int64_t tokens,
                            DType dtype = DType::kF32) {
  return tokens * config.hidden_size * SizeOf(dtype);
}

// Other names under which published checkpoints carry the same tensor ("transformer.h.0..." for
// GPT-2's "h.0..."), tried in order when `name` is missing.
std::vector<std::string> AlternativeNames(const DecoderConfig& config, const std::string& name);
// Tensors that checkpoints may carry and that are no parameters (GPT-2's attn.bias masks, rotary
// inv_freq, a tied lm_head.weight): skipped instead of "unexpected tensor".
bool IsIgnorableTensor(const DecoderConfig& config, const std::string& name);

}  // namespace forebay
