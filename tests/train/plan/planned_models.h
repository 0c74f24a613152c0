// Models and steps that are planned for. The large ones are never made.
#pragma once

#include <cstdint>

#include "forebay/model/decoder_config.h"
#include "forebay/model/llama_shapes.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/train/options/options.h"

namespace forebay {

inline constexpr int64_t kGibibyte = int64_t{1} << 30;

inline DecoderConfig SmolLm2() {
  return LlamaShapeOf(135'000'000).config;
}

inline DecoderConfig Llama13B() {
  return LlamaShapeOf(13'000'000'000).config;
}

inline DecoderConfig Llama70B() {
  return LlamaShapeOf(70'000'000'000).config;
}

inline DecoderConfig TinyDecoder() {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 256;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 3;
  config.num_heads = config.num_kv_heads = 4;
  config.head_dim = 16;
  config.max_positions = 64;
  config.window.assign(3, 0);
  return config;
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

inline MachineLimits BigMachine() {
  MachineLimits limits;
  limits.available_memory_bytes = 128 * kGibibyte;
  limits.num_cores = 2;
  limits.disks[0].folder = "out/swap";
  limits.disks[0].free_bytes = limits.out_free_bytes = int64_t{4000} * 1000 * 1000 * 1000;
  return limits;
}

inline TrainOptions SmallRun() {
  TrainOptions options;
  options.out = "out";
  options.batch = 4;
  options.seq = 256;
  options.ram_bytes = kGibibyte;
  options.weights_tier = TierChoice::kNvme;
  options.state_tier = TierChoice::kNvme;
  return options;
}

}  // namespace forebay
