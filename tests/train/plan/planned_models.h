// Models and steps that are planned for. The large ones are never made.
#pragma once

#include <cstdint>

#include "forebay/model/decoder_config.h"
#include "forebay/train/options/options.h"

namespace forebay {

inline constexpr int64_t kGibibyte = int64_t{1} << 30;

struct LlamaShape {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int64_t max_positions = 4096;
};

inline DecoderConfig LlamaOf(const LlamaShape& shape) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = shape.vocab_size;
  config.hidden_size = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.num_layers = shape.num_layers;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.hidden_size / shape.num_heads;
  config.max_positions = shape.max_positions;
  config.window.assign(shape.num_layers, 0);
  return config;
}

inline DecoderConfig Llama70B() {
  return LlamaOf({.hidden_size = 8192,
                  .intermediate_size = 28672,
                  .num_layers = 80,
                  .num_heads = 64,
                  .num_kv_heads = 8});
}

inline DecoderConfig Llama13B() {
  return LlamaOf({.hidden_size = 5120,
                  .intermediate_size = 13824,
                  .num_layers = 40,
                  .num_heads = 40,
                  .num_kv_heads = 40});
}

inline DecoderConfig TinyDecoder() {
  return LlamaOf({.vocab_size = 256,
                  .hidden_size = 64,
                  .intermediate_size = 128,
                  .num_layers = 3,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .max_positions = 64});
}

// A run on a GPU, 65,536 tokens a step.
inline TrainOptions LargeSteps() {
  TrainOptions options;
  options.out = "out";
  options.batch = 4;
  options.seq = 1024;
  options.accum = 16;
  options.device = ComputeDevice::kCuda;
  return options;
}

}  // namespace forebay
