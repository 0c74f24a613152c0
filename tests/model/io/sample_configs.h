// Small config.json values of each family, as transformers 5 writes them, for tests to edit.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/json.h"

namespace forebay {

inline Json ParseSample(std::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text, "sample");
  FOREBAY_CHECK(json.ok());
  return *std::move(json);
}

inline Json LlamaSample() {
  return ParseSample(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
    "attention_bias": false, "mlp_bias": false, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2})");
}

// The same model for another architecture.
inline Json SampleOf(std::string_view architecture) {
  Json json = LlamaSample();
  json["architectures"] = Json::array({std::string(architecture)});
  json.erase("model_type");
  return json;
}

inline Json Gpt2Sample() {
  return ParseSample(R"({
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 96, "n_positions": 64, "n_embd": 32,
    "n_layer": 2, "n_head": 4, "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.1,
    "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "initializer_range": 0.02,
    "scale_attn_weights": true, "bos_token_id": 95, "eos_token_id": 95,
    "scale_attn_by_inverse_layer_idx": false, "reorder_and_upcast_attn": false, "add_cross_attention": false})");
}

inline Json With(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return json;
}
inline Json Without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

}  // namespace forebay
