// One block of a decoder on a GPU, forward and backward: the computation of model/decoder_block.cc.
// Private to this folder.
#pragma once

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "forebay/device/device.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/cuda_decoder/device_batches.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/decoder_tensors.h"
#include "forebay/model/decoder_workspace.h"
#include "forebay/step/param_source.h"

namespace forebay {

using CudaWorkspace = WorkspaceOf<void>;

// Computes any block in one workspace. Everything pointed to outlives it.
class CudaBlock {
 public:
  CudaBlock(const DecoderConfig& config, cuda::Context* context, const CudaWorkspace& workspace);

  // y = norm(x) over rows of `width`, and its gradient: dx (+)= that, the norm's own are added to
  // `gradient`.
  absl::Status Normalize(const NormTensors& norm, const LayerWeights& weights, const void* x,
                         int64_t rows, int64_t width, void* y, const NormStatistics& statistics);
  absl::Status NormalizeBackward(const NormTensors& norm, const LayerWeights& weights,
                                 const void* x, const NormStatistics& statistics, const void* dy,
                                 int64_t rows, int64_t width, void* dx, bool accumulate,
                                 std::span<float> gradient, int64_t first_elem = 0);

  // out = the block's output for its input x; both [tokens, hidden]. They may be one buffer.
  absl::Status Forward(int block, const BlockTensors& tensors, const LayerWeights& weights,
                       const DeviceBatch& batch, const void* x, void* out);
  // The same with what `attend` finds: it reads the workspace's query, key and value, which have
  // their positions, and writes `attended`.
  using AttendCall = absl::FunctionRef<absl::Status()>;
  absl::Status ForwardWith(AttendCall attend, const BlockTensors& tensors,
                           const LayerWeights& weights, const DeviceBatch& batch, const void* x,
                           void* out);
  // Forward attends with this: the tokens to each other, inside the batch's segments.
  absl::Status AttendInSegments(int block, const DeviceBatch& batch);
  // Leaves in the workspace what Backward needs of the forward pass.
  absl::Status Recompute(int block, const BlockTensors& tensors, const LayerWeights& weights,
                         const DeviceBatch& batch, const void* x);
  // Behind Recompute of the same arguments. dx in: gradient of the block's output; out: of its
  // input. gradient: the layer's flat vector, added to.
  absl::Status Backward(int block, const BlockTensors& tensors, const LayerWeights& weights,
                        const DeviceBatch& batch, const void* x, void* dx,
                        std::span<float> gradient);

 private:
  cuda::AttentionShape AttentionOf(int block, const DeviceBatch& batch) const;
  absl::Status Rotate(const DeviceBatch& batch, void* query, void* key, bool inverse);
  absl::Status ProjectQkv(const BlockTensors& tensors, const LayerWeights& weights,
                          const DeviceBatch& batch, const void* x);
  absl::Status Attend(AttendCall attend, const BlockTensors& tensors, const LayerWeights& weights,
                      const DeviceBatch& batch, const void* x, void* out);
  absl::Status ActivateMlp(const BlockTensors& tensors, const LayerWeights& weights,
                           int64_t tokens);
  // The gradients of a linear layer: dx (+)= that of its input x.
  absl::Status LinearBackward(const LinearTensors& linear, const LayerWeights& weights,
                              const void* x, const void* dy, int64_t tokens, void* dx,
                              bool accumulate, std::span<float> gradient);
  absl::Status BackwardMlp(const BlockTensors& tensors, const LayerWeights& weights, int64_t tokens,
                           void* dx, std::span<float> gradient);
  absl::Status BackwardHeads(const BlockTensors& tensors, const LayerWeights& weights,
                             const DeviceBatch& batch, std::span<float> gradient);
  absl::Status BackwardAttention(int block, const BlockTensors& tensors,
                                 const LayerWeights& weights, const DeviceBatch& batch,
                                 const void* x, void* dx, std::span<float> gradient);

  const DecoderConfig& config_;
  cuda::Context& context_;
  const CudaWorkspace& workspace_;
};

}  // namespace forebay
