// Models that are planned for and never made.
#pragma once

#include <cstdint>

#include "forebay/model/decoder_config.h"

namespace forebay {

inline constexpr int64_t kGibibyte = int64_t{1} << 30;

inline DecoderConfig Llama70B() {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 32000;
  config.hidden_size = 8192;
  config.intermediate_size = 28672;
  config.num_layers = 80;
  config.num_heads = 64;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.max_positions = 4096;
  config.window.assign(80, 0);
  return config;
}

inline DecoderConfig Llama13B() {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 32000;
  config.hidden_size = 5120;
  config.intermediate_size = 13824;
  config.num_layers = config.num_heads = config.num_kv_heads = 40;
  config.head_dim = 128;
  config.max_positions = 4096;
  config.window.assign(40, 0);
  return config;
}

}  // namespace forebay
