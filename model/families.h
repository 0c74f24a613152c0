// The model families forebay knows: one table row per architecture says how its config.json spells
// things, what its layers are made of and what its tensors are called. Adding a family that
// computes with the same operators is adding a row.
//
// Defaults are those of transformers 5 (configuration_<family>.py), so that a config.json means the
// same here as there. The keys that fix the size of the model have no defaults here: a config
// without them is an error rather than a 7B model by accident.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "forebay/model/decoder_config.h"

namespace forebay {

// A yes/no property of a family: fixed (no key), or read from a key of config.json.
struct FamilyFlag {
  std::string_view key;  // empty: `value` always
  bool value = false;    // what holds when the key is missing
};

enum class WindowRule : uint8_t {
  kNone,
  kAllLayers,  // `sliding_window` on every layer (Mistral); null means none
  kPerLayer,   // `layer_types`, or `max_window_layers` and up where `use_sliding_window` (Qwen)
};

// The name of one tensor as transformers saves it; "{}" stands for the number of the block.
struct TensorName {
  TensorRole role;
  std::string_view pattern;
};

// A key whose value must be this one, because another value changes what the model computes.
struct RequiredValue {
  std::string_view key;
  bool value;
};

struct Family {
  std::string_view architecture;  // "LlamaForCausalLM"
  std::string_view model_type;    // "llama"

  // Spelling of config.json. Empty: the family has no such key.
  std::string_view hidden_key, layers_key, heads_key, kv_heads_key, head_dim_key, intermediate_key,
      positions_key, norm_eps_key, activation_key;
  std::string_view old_positions_key;  // read where `positions_key` is missing
  // Width of the MLP where `intermediate_key` is missing or null, in multiples of hidden; 0: the
  // key is required.
  int64_t default_mlp_multiple = 0;

  int64_t default_kv_heads =
      0;  // when the key is missing; 0: as many as heads (as when it is null)
  int64_t default_head_dim = 0;  // 0: hidden / heads
  double default_norm_eps = 1e-6;
  int64_t default_window = 0;
  int64_t default_bos_token = -1;
  int64_t default_eos_token = -1;
  bool default_tied = false;

  NormKind norm = NormKind::kRms;
  MlpKind mlp = MlpKind::kSwiGlu;
  PositionKind positions = PositionKind::kRope;
  WindowRule window = WindowRule::kNone;
  bool fused_qkv = false;
  bool linear_in_out = false;
  bool qk_norm = false;
  FamilyFlag qkv_bias, out_bias, mlp_bias;

  std::span<const std::string_view> activations;  // names of the one activation that is computed
  std::span<const RequiredValue> required_values;
  std::string_view prefix;  // of the base model's tensors; checkpoints may lack it
  std::span<const TensorName>
      tensors;  // in the order of the inventory, embed, blocks and head mixed
};

std::span<const Family> AllFamilies();
// nullptr when there is none.
const Family* FindFamily(std::string_view architecture);
const Family* FindFamilyByModelType(std::string_view model_type);
// "LlamaForCausalLM, MistralForCausalLM, ...", for messages.
std::string SupportedArchitectures();

}  // namespace forebay
