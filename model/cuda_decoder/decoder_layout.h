// How much a decoder on a GPU needs of what. Private to this folder.
#pragma once

#include <cstdint>

#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/cuda_decoder/gpu_activations.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/decoder_workspace.h"

namespace forebay {

// Whether the layer's gradients are made in the large one of two buffers. Those of the embedding,
// and of an output projection of its own, are: they are made at other times than those of blocks,
// with tied embeddings while those are. Where options have all in one buffer, it is the large one.
bool HasLargeGradient(const DecoderConfig& config, const CudaDecoderOptions& options, int layer);

// All in bytes.
struct CudaDecoderLayout {
  CudaDecoderLayout(const DecoderConfig& config, const CudaDecoderOptions& options);

  WorkspaceShape workspace_shape;
  int64_t workspace = 0;
  int64_t scratch = 0;  // of the operators
  GpuActivationsShape activations;
  int64_t activation_gradient = 0;
  int64_t block_gradient = 0;
  int64_t large_gradient = 0;
  // With vocabulary_in_parts: the inputs of the output layer, the logarithms of the sums of its
  // logits, and the gradient of its small tensors.
  int64_t projection_inputs = 0;
  int64_t log_sums = 0;
  int64_t small_gradient = 0;
  int64_t losses = 0;
  int64_t micro_batches = 0;
  int64_t rope = 0;  // both tables, while they are copied
};

}  // namespace forebay
