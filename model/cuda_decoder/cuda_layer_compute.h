// The LayerCompute that CreateCudaDecoder makes. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/base/trace.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/cuda_decoder/cuda_block.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/cuda_decoder/decoder_layout.h"
#include "forebay/model/cuda_decoder/device_batches.h"
#include "forebay/model/cuda_decoder/gpu_activations.h"
#include "forebay/model/decoder_tensors.h"

namespace forebay {

class CudaLayerCompute final : public CudaDecoder {
 public:
  CudaLayerCompute(const DecoderConfig& config, const CudaDecoderOptions& options);
  absl::Status Allocate(Device* device, MemoryBudget* device_budget, MemoryBudget* host_budget,
                        MatmulAlgorithms* algorithms);

  absl::Status BeginPass(std::span<const MicroBatch> batches, double gradient_scale) override;
  size_t num_micro_batches() const override { return num_batches_; }
  absl::Status Forward(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Loss(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status LossAndGradient(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Recompute(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Backward(int layer, const HeldWeights& held, size_t batch) override;
  void Keep(int layer) override;
  void Drop(int layer) override;
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& held,
                                                            int64_t first_elem) override;
  Event* WeightsAreUsed(int layer) override { return used_[static_cast<size_t>(layer)].get(); }
  absl::StatusOr<double> LossSumOf(size_t batch) override;
  ActivationStorage& activations() override { return *activations_; }
  void SpillTo(ActivationStorage* storage) override { activations_->SpillTo(storage); }
  void EndSpilling() override { activations_->EndSpilling(); }

 private:
  absl::Status MakeOperators(Device* device, MemoryBudget* device_budget,
                             MatmulAlgorithms* algorithms);
  absl::Status UploadRope(MemoryBudget* host_budget);

  std::byte* Activation(int in_slot, size_t batch) const {
    return activations_->buffers().data() + in_slot * layout_.activations.activation_bytes +
           OffsetOf(batch);
  }
  std::byte* ActivationGradient(size_t batch) const {
    return activation_gradient_.address() + OffsetOf(batch);
  }
  int64_t OffsetOf(size_t batch) const {
    return first_token_[batch] * config_.hidden_size * SizeOf(options_.dtype);
  }
  // Where layers' gradients are made, one at a time.
  struct GradientPlace {
    DeviceAllocation memory;
    std::unique_ptr<Event> is_taken;  // by whoever brings what was in it to RAM
  };
  GradientPlace& PlaceOf(int layer) {
    return HasLargeGradient(config_, options_, layer) ? large_gradient_ : block_gradient_;
  }
  std::span<float> Gradient(int layer);
  absl::Status ZeroGradient(int layer);
  // Waits until what was in the place is taken.
  absl::Status Zero(GradientPlace& place, std::span<float> gradient, int layer);
  // A part of a gradient that is made there.
  absl::StatusOr<LayerGradient> PartIn(int layer, const GradientPlace& place,
                                       std::span<const float> elems, int64_t first_elem);
  LayerGradient OnDevice(int layer, const GradientPlace& place, std::span<const float> elems,
                         int64_t first_elem) const;
  // With vocabulary_in_parts:
  std::byte* ProjectionInput(size_t batch) const {
    return projection_inputs_.address() + OffsetOf(batch);
  }
  float* LogSums(size_t batch) const {
    return reinterpret_cast<float*>(log_sums_.address()) + first_token_[batch];
  }
  std::span<float> SmallGradient() const {
    return {reinterpret_cast<float*>(small_gradient_.memory.address()),
            static_cast<size_t>(layout_.small_gradient) / sizeof(float)};
  }

  // The layer's weights, which the stream waits for.
  absl::StatusOr<LayerWeights> Use(int layer, const HeldWeights& held);
  // The head's projection: with tied embeddings that of the embedding's layer.
  struct HeadWeights {
    LayerWeights head;
    Linear projection;
  };
  absl::StatusOr<HeadWeights> UseHead(int layer, const HeldWeights& held);
  absl::Status LossAndInputGradient(int layer, const HeadWeights& weights, size_t batch);
  absl::Status AddRows(int layer, const HeldWeights& held, int64_t first_row,
                       std::span<float> rows);
  absl::Status Normed(const LayerWeights& head, size_t batch, void* normed);
  // Nothing that was enqueued so far still reads the layer's weights when its event is reached.
  absl::Status EndUse(int layer) { return stream_->Record(*used_[static_cast<size_t>(layer)]); }
  absl::Status EndHeadUse(int layer) {
    if (config_.tied_embeddings) FOREBAY_RETURN_IF_ERROR(EndUse(EmbedLayer()));
    return EndUse(layer);
  }
  double* LossSum(size_t batch) const {
    return reinterpret_cast<double*>(loss_sums_.address()) + batch;
  }
  static TraceScope::Of ScopeOf(int layer, size_t batch) {
    return {.layer = layer, .batch = static_cast<int64_t>(batch)};
  }
  absl::Status FetchLoss(size_t batch);
  absl::Status Embed(const LayerWeights& weights, size_t batch);
  absl::Status BackwardEmbed(size_t batch);

  const DecoderConfig config_;
  const CudaDecoderOptions options_;
  const Inventory inventory_;
  const DecoderTensors tensors_;
  const CudaDecoderLayout layout_;

  // Memory before the stream that uses it, so that it ends first; events before it too.
  DeviceAllocation workspace_memory_, activation_gradient_, loss_sums_;
  std::unique_ptr<GpuActivations> activations_;
  GradientPlace block_gradient_, large_gradient_, small_gradient_;
  DeviceAllocation projection_inputs_, log_sums_;
  HostBuffer host_loss_sums_;
  std::unique_ptr<DeviceBatches> batches_;
  std::vector<std::unique_ptr<Event>> used_;  // by layer
  std::unique_ptr<Event> gradient_is_complete_, losses_are_there_;
  std::unique_ptr<cuda::Context> context_;
  std::unique_ptr<Stream> stream_;
  CudaWorkspace workspace_;
  std::unique_ptr<CudaBlock> block_;

  // The pass:
  size_t num_batches_ = 0;
  std::vector<int64_t> first_token_;  // of each micro-batch, and one past the last
  double gradient_scale_ = 1;
  int slot_ = 0;                   // has the newest activation
  int num_kept_ = 0;               // the place of the next one, as ActivationStorage has it
  std::vector<int> kept_in_slot_;  // by layer; -1: not kept
};

}  // namespace forebay
