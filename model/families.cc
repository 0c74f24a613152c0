#include "forebay/model/families.h"

#include <array>

#include "fmt/format.h"

namespace forebay {
namespace {

constexpr std::array<std::string_view, 2> kSilu = {"silu", "swish"};
constexpr std::array<std::string_view, 2> kGeluTanh = {"gelu_new", "gelu_pytorch_tanh"};

// transformers would look both ways with is_causal=false.
constexpr std::array<RequiredValue, 1> kCausal = {{{"is_causal", true}}};
constexpr std::array<RequiredValue, 5> kGpt2Values = {{{"is_causal", true},
                                                       {"scale_attn_weights", true},
                                                       {"scale_attn_by_inverse_layer_idx", false},
                                                       {"reorder_and_upcast_attn", false},
                                                       {"add_cross_attention", false}}};

// Llama, Mistral, Qwen2 and Qwen3; which of them a model has follows from its config.
constexpr std::array<TensorName, 21> kLlamaTensors = {{
    {TensorRole::kTokenEmbedding, "model.embed_tokens.weight"},
    {TensorRole::kAttnNorm, "model.layers.{}.input_layernorm.weight"},
    {TensorRole::kQuery, "model.layers.{}.self_attn.q_proj.weight"},
    {TensorRole::kQueryBias, "model.layers.{}.self_attn.q_proj.bias"},
    {TensorRole::kKey, "model.layers.{}.self_attn.k_proj.weight"},
    {TensorRole::kKeyBias, "model.layers.{}.self_attn.k_proj.bias"},
    {TensorRole::kValue, "model.layers.{}.self_attn.v_proj.weight"},
    {TensorRole::kValueBias, "model.layers.{}.self_attn.v_proj.bias"},
    {TensorRole::kQueryNorm, "model.layers.{}.self_attn.q_norm.weight"},
    {TensorRole::kKeyNorm, "model.layers.{}.self_attn.k_norm.weight"},
    {TensorRole::kAttnOut, "model.layers.{}.self_attn.o_proj.weight"},
    {TensorRole::kAttnOutBias, "model.layers.{}.self_attn.o_proj.bias"},
    {TensorRole::kMlpNorm, "model.layers.{}.post_attention_layernorm.weight"},
    {TensorRole::kGate, "model.layers.{}.mlp.gate_proj.weight"},
    {TensorRole::kGateBias, "model.layers.{}.mlp.gate_proj.bias"},
    {TensorRole::kUp, "model.layers.{}.mlp.up_proj.weight"},
    {TensorRole::kUpBias, "model.layers.{}.mlp.up_proj.bias"},
    {TensorRole::kDown, "model.layers.{}.mlp.down_proj.weight"},
    {TensorRole::kDownBias, "model.layers.{}.mlp.down_proj.bias"},
    {TensorRole::kFinalNorm, "model.norm.weight"},
    {TensorRole::kLmHead, "lm_head.weight"},
}};

constexpr std::array<TensorName, 17> kGpt2Tensors = {{
    {TensorRole::kTokenEmbedding, "transformer.wte.weight"},
    {TensorRole::kPositionEmbedding, "transformer.wpe.weight"},
    {TensorRole::kAttnNorm, "transformer.h.{}.ln_1.weight"},
    {TensorRole::kAttnNormBias, "transformer.h.{}.ln_1.bias"},
    {TensorRole::kQkv, "transformer.h.{}.attn.c_attn.weight"},
    {TensorRole::kQkvBias, "transformer.h.{}.attn.c_attn.bias"},
    {TensorRole::kAttnOut, "transformer.h.{}.attn.c_proj.weight"},
    {TensorRole::kAttnOutBias, "transformer.h.{}.attn.c_proj.bias"},
    {TensorRole::kMlpNorm, "transformer.h.{}.ln_2.weight"},
    {TensorRole::kMlpNormBias, "transformer.h.{}.ln_2.bias"},
    {TensorRole::kUp, "transformer.h.{}.mlp.c_fc.weight"},
    {TensorRole::kUpBias, "transformer.h.{}.mlp.c_fc.bias"},
    {TensorRole::kDown, "transformer.h.{}.mlp.c_proj.weight"},
    {TensorRole::kDownBias, "transformer.h.{}.mlp.c_proj.bias"},
    {TensorRole::kFinalNorm, "transformer.ln_f.weight"},
    {TensorRole::kFinalNormBias, "transformer.ln_f.bias"},
    {TensorRole::kLmHead, "lm_head.weight"},
}};

// What Llama and its descendants share; the rows below say how they differ.
constexpr Family LlamaLike(std::string_view architecture, std::string_view model_type) {
  Family family;
  family.architecture = architecture;
  family.model_type = model_type;
  family.hidden_key = "hidden_size";
  family.layers_key = "num_hidden_layers";
  family.heads_key = "num_attention_heads";
  family.kv_heads_key = "num_key_value_heads";
  family.head_dim_key = "head_dim";
  family.intermediate_key = "intermediate_size";
  family.positions_key = "max_position_embeddings";
  family.norm_eps_key = "rms_norm_eps";
  family.activation_key = "hidden_act";
  family.activations = kSilu;
  family.required_values = kCausal;
  family.prefix = "model.";
  family.tensors = kLlamaTensors;
  return family;
}

constexpr Family Llama() {
  Family family = LlamaLike("LlamaForCausalLM", "llama");
  family.qkv_bias = {"attention_bias", false};
  family.out_bias = {"attention_bias", false};
  family.mlp_bias = {"mlp_bias", false};
  family.default_bos_token = 1;
  family.default_eos_token = 2;
  return family;
}

constexpr Family Mistral() {
  Family family = LlamaLike("MistralForCausalLM", "mistral");
  family.default_kv_heads = 8;
  family.window = WindowRule::kAllLayers;
  family.default_window = 4096;
  family.default_bos_token = 1;
  family.default_eos_token = 2;
  return family;
}

constexpr Family Qwen2() {
  Family family = LlamaLike("Qwen2ForCausalLM", "qwen2");
  family.default_kv_heads = 32;
  family.qkv_bias = {"", true};
  family.window = WindowRule::kPerLayer;
  family.default_window = 4096;
  return family;
}

constexpr Family Qwen3() {
  Family family = LlamaLike("Qwen3ForCausalLM", "qwen3");
  family.default_kv_heads = 32;
  family.default_head_dim = 128;
  family.qk_norm = true;
  family.qkv_bias = {"attention_bias", false};
  family.out_bias = {"attention_bias", false};
  family.window = WindowRule::kPerLayer;
  family.default_window = 4096;
  return family;
}

constexpr Family Gpt2() {
  Family family;
  family.architecture = "GPT2LMHeadModel";
  family.model_type = "gpt2";
  family.hidden_key = "n_embd";
  family.layers_key = "n_layer";
  family.heads_key = "n_head";
  family.intermediate_key = "n_inner";
  family.positions_key = "n_positions";
  family.old_positions_key = "n_ctx";
  family.default_mlp_multiple = 4;
  family.norm_eps_key = "layer_norm_epsilon";
  family.activation_key = "activation_function";
  family.default_norm_eps = 1e-5;
  family.default_bos_token = 50256;
  family.default_eos_token = 50256;
  family.default_tied = true;
  family.norm = NormKind::kLayer;
  family.mlp = MlpKind::kGeluTanh;
  family.positions = PositionKind::kLearned;
  family.fused_qkv = true;
  family.linear_in_out = true;
  family.qkv_bias = {"", true};
  family.out_bias = {"", true};
  family.mlp_bias = {"", true};
  family.activations = kGeluTanh;
  family.required_values = kGpt2Values;
  family.prefix = "transformer.";
  family.tensors = kGpt2Tensors;
  return family;
}

constexpr std::array<Family, 5> kFamilies = {Llama(), Mistral(), Qwen2(), Qwen3(), Gpt2()};

}  // namespace

std::span<const Family> AllFamilies() {
  return kFamilies;
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

const Family* FindFamilyByModelType(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

std::string SupportedArchitectures() {
  std::string names;
  for (const Family& family : kFamilies) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", family.architecture);
  }
  return names;
}

}  // namespace forebay
