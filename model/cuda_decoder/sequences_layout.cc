#include "forebay/model/cuda_decoder/sequences_layout.h"

#include <algorithm>
#include <numeric>

#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda/scratch.h"
#include "forebay/model/rope.h"

namespace forebay {
namespace {

// So that operators can read 16 bytes at a time.
int64_t AlignedBytes(int64_t size_bytes) {
  constexpr int64_t kAlignment = 256;
  return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

CudaSequencesLayout::CudaSequencesLayout(const DecoderConfig& config,
                                         const CudaSequencesOptions& options)
    : block(config, {.dtype = options.dtype,
                     .max_tokens = options.max_tokens,
                     .step_tokens = options.max_tokens,
                     .training = false}),
      num_rows(std::accumulate(options.max_lengths.begin(), options.max_lengths.end(), int64_t{0})),
      max_length(std::ranges::max(options.max_lengths)) {
  constexpr int64_t kFloatBytes = sizeof(float);
  const int64_t row_bytes = config.num_kv_heads * config.head_dim * SizeOf(options.dtype);
  cache = {.num_blocks = config.num_layers,
           .num_in_ram = options.num_cached_in_ram,
           .row_bytes = row_bytes,
           .block_bytes = AlignedBytes(num_rows * row_bytes)};
  if (config.positions == PositionKind::kRope) {
    rope = NumRopeRows(config.rope, max_length) * config.head_dim * kFloatBytes;
  }
  numbers = AlignedBytes(options.max_tokens * static_cast<int64_t>(sizeof(int32_t)));
  tokens = kNumbersOfToken * numbers;
  logits = std::ssize(options.max_lengths) * config.vocab_size * kFloatBytes;
}

CudaSequencesMemory CudaSequencesMemoryFor(const DecoderConfig& config,
                                           const CudaSequencesOptions& options) {
  const CudaSequencesLayout layout(config, options);
  return {.workspace_bytes =
              layout.block.workspace + layout.block.scratch + cuda::kMatmulWorkspaceBytes,
          .cache_bytes = layout.cache.DeviceBytes() + layout.rope,
          .token_bytes = layout.tokens + layout.logits};
}

int64_t CudaSequencesHostBytes(const DecoderConfig& config, const CudaSequencesOptions& options) {
  const CudaSequencesLayout layout(config, options);
  return HostBuffer::ChargedBytes(layout.tokens) + HostBuffer::ChargedBytes(layout.logits) +
         HostBuffer::ChargedBytes(layout.rope) + HostBuffer::ChargedBytes(layout.cache.RamBytes());
}

}  // namespace forebay
