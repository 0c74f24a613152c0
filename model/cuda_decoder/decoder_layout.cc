#include "forebay/model/cuda_decoder/decoder_layout.h"

#include <algorithm>

#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda/scratch.h"
#include "forebay/model/cuda_decoder/device_batches.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/rope.h"
#include "forebay/step/step_schedule.h"

namespace forebay {

bool HasLargeGradient(const DecoderConfig& config, const CudaDecoderOptions& options, int layer) {
  return options.shares_gradients || options.vocabulary_in_parts || layer == EmbedLayer() ||
         (layer == HeadLayer(config) && !config.tied_embeddings);
}

CudaDecoderLayout::CudaDecoderLayout(const DecoderConfig& config, const CudaDecoderOptions& options)
    : workspace_shape{.max_tokens = options.max_tokens,
                      .training = options.training,
                      .activation_bytes = SizeOf(options.dtype)} {
  WorkspaceOf<void> unplaced;
  workspace = PlaceWorkspace(config, workspace_shape, nullptr, unplaced);
  scratch = cuda::ScratchBytes(options.dtype, options.max_tokens, config.hidden_size,
                               config.intermediate_size, config.vocab_size, config.num_heads,
                               config.head_dim);
  activations = {
      .num_buffers = 1,
      .activation_bytes = options.step_tokens * config.hidden_size * SizeOf(options.dtype)};
  losses = options.num_batches * static_cast<int64_t>(sizeof(double));
  micro_batches = DeviceBatches::BytesFor(options.step_tokens, options.num_batches);
  if (config.positions == PositionKind::kRope) {
    rope = NumRopeRows(config.rope, options.max_tokens) * config.head_dim *
           static_cast<int64_t>(sizeof(float));
  }
  if (!options.training) return;
  const Inventory inventory = BuildInventory(config);
  activations.num_spilled = options.num_spilled_activations;
  activations.segment_layers = options.segment_layers;
  activations.in_storage = options.spills_to_storage;
  activations.num_buffers =
      NumActivationBuffers({.num_layers = inventory.num_layers(),
                            .num_spilled_activations = options.num_spilled_activations,
                            .segment_layers = options.segment_layers});
  activation_gradient = activations.activation_bytes;
  constexpr int64_t kFloat = sizeof(float);
  if (options.vocabulary_in_parts) {
    const LayerSpec& head = inventory.layers()[HeadLayer(config)];
    projection_inputs = activations.activation_bytes;
    log_sums = options.step_tokens * kFloat;
    small_gradient = (head.num_elems - head.small_begin) * kFloat;
    large_gradient = MostElemsOfVocabularyPart(config) * kFloat;
  }
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    const bool is_apart = layer == EmbedLayer() || layer == HeadLayer(config);
    if (options.vocabulary_in_parts && is_apart) continue;
    int64_t& most = HasLargeGradient(config, options, layer) ? large_gradient : block_gradient;
    most = std::max(most, inventory.layers()[layer].num_elems * kFloat);
  }
}

CudaDecoderMemory CudaDecoderMemoryFor(const DecoderConfig& config,
                                       const CudaDecoderOptions& options) {
  const CudaDecoderLayout layout(config, options);
  return {.workspace_bytes = layout.workspace + layout.scratch + cuda::kMatmulWorkspaceBytes,
          .activation_bytes = layout.activations.num_buffers * layout.activations.activation_bytes +
                              layout.activation_gradient + layout.projection_inputs +
                              layout.log_sums,
          .gradient_bytes = layout.block_gradient + layout.large_gradient + layout.small_gradient,
          .micro_batch_bytes = layout.micro_batches + layout.losses};
}

int64_t CudaActivationBytes(const DecoderConfig& config, const CudaDecoderOptions& options) {
  return CudaDecoderLayout(config, options).activations.activation_bytes;
}

int64_t CudaDecoderHostBytes(const DecoderConfig& config, const CudaDecoderOptions& options) {
  const CudaDecoderLayout layout(config, options);
  const GpuActivationsShape& activations = layout.activations;
  return HostBuffer::ChargedBytes(layout.micro_batches) + HostBuffer::ChargedBytes(layout.losses) +
         HostBuffer::ChargedBytes(layout.rope) + HostBuffer::ChargedBytes(activations.RamBytes());
}

}  // namespace forebay
