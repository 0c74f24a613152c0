// What a training step needs in RAM beside the decoder's workspace. Pure.
#pragma once

#include <cstdint>

#include "forebay/base/tensor_spec.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// For the planner, and for what TrainingStep::Create makes.
struct StepMemory {
  int64_t checkpoint_bytes =
      0;  // layer inputs of all micro-batches, fp32: (num_layers + 1) * tokens * hidden
  int64_t activation_gradient_bytes = 0;  // dx of all micro-batches, fp32
  int64_t block_gradient_bytes =
      0;  // fp32 accumulator of one block (and of the head when embeddings are tied)
  int64_t large_gradient_bytes =
      0;  // fp32 accumulator of the embedding, and of the head when it is not tied
};
StepMemory StepMemoryFor(const DecoderConfig& config, const Inventory& inventory,
                         int64_t tokens_per_step);

}  // namespace forebay
