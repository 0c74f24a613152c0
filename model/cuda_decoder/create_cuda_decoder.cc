// The memory of a decoder on a GPU, and what is there from its beginning.
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"
#include "forebay/model/cuda_decoder/cuda_layer_compute.h"
#include "forebay/model/cuda_decoder/decoder_products.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/rope.h"

namespace forebay {

absl::Status CudaLayerCompute::UploadRope(MemoryBudget* host_budget) {
  if (layout_.rope == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer tables,
      HostBuffer::Create(host_budget, "tables of positions for the GPU", layout_.rope));
  const auto elems = static_cast<size_t>(layout_.rope) / sizeof(float) / 2;
  const std::span<float> cos = tables.As<float>().first(elems);
  const std::span<float> sin = tables.As<float>().subspan(elems, elems);
  FillRopeRows(config_.rope, config_.head_dim, options_.max_tokens, cos, sin);
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(workspace_.rope_cos, std::as_bytes(cos)));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(workspace_.rope_sin, std::as_bytes(sin)));
  return stream_->Await();
}

absl::Status CudaLayerCompute::MakeOperators(Device* device, MemoryBudget* device_budget,
                                             MatmulAlgorithms* algorithms) {
  FOREBAY_ASSIGN_OR_RETURN(stream_, CreateTracedStream(device, "compute"));
  FOREBAY_ASSIGN_OR_RETURN(context_, cuda::Context::Create(device, stream_.get(), device_budget,
                                                           {.dtype = options_.dtype,
                                                            .tf32 = options_.tf32,
                                                            .scratch_bytes = layout_.scratch}));
  if (algorithms == nullptr) return absl::OkStatus();
  return ChooseAlgorithms(*context_, device, device_budget,
                          TrainingProducts(*context_, config_, tensors_, options_), *algorithms);
}

absl::Status CudaLayerCompute::Allocate(Device* device, MemoryBudget* device_budget,
                                        MemoryBudget* host_budget, MatmulAlgorithms* algorithms) {
  // First, as algorithms are measured in memory that is taken for other things then.
  FOREBAY_RETURN_IF_ERROR(MakeOperators(device, device_budget, algorithms));
  const auto allocate = [&](DeviceAllocation& to, std::string_view purpose,
                            int64_t size_bytes) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(to,
                             DeviceAllocation::Create(device_budget, device, purpose, size_bytes));
    return absl::OkStatus();
  };
  FOREBAY_RETURN_IF_ERROR(
      allocate(workspace_memory_, "activations of one block", layout_.workspace));
  PlaceWorkspace(config_, layout_.workspace_shape, workspace_memory_.address(), workspace_);
  FOREBAY_RETURN_IF_ERROR(
      allocate(activation_gradient_, "activation gradients", layout_.activation_gradient));
  if (layout_.block_gradient > 0) {
    FOREBAY_RETURN_IF_ERROR(
        allocate(block_gradient_.memory, "gradient of one block (fp32)", layout_.block_gradient));
  }
  FOREBAY_RETURN_IF_ERROR(
      allocate(large_gradient_.memory, "gradient of one layer (fp32)", layout_.large_gradient));
  if (options_.vocabulary_in_parts) {
    FOREBAY_RETURN_IF_ERROR(
        allocate(projection_inputs_, "inputs of the output layer", layout_.projection_inputs));
    FOREBAY_RETURN_IF_ERROR(allocate(log_sums_, "logarithms of sums", layout_.log_sums));
    FOREBAY_RETURN_IF_ERROR(allocate(small_gradient_.memory, "gradient of the last norm (fp32)",
                                     layout_.small_gradient));
  }
  FOREBAY_RETURN_IF_ERROR(allocate(loss_sums_, "losses", layout_.losses));
  FOREBAY_ASSIGN_OR_RETURN(host_loss_sums_, HostBuffer::Create(host_budget, "losses",
                                                               layout_.losses, {.device = device}));
  FOREBAY_ASSIGN_OR_RETURN(batches_,
                           DeviceBatches::Create(options_.step_tokens, options_.num_batches, device,
                                                 device_budget, host_budget));
  FOREBAY_ASSIGN_OR_RETURN(activations_,
                           GpuActivations::Create(layout_.activations, device, stream_.get(),
                                                  device_budget, host_budget));
  FOREBAY_ASSIGN_OR_RETURN(gradient_is_complete_, device->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(block_gradient_.is_taken, device->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(large_gradient_.is_taken, device->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(small_gradient_.is_taken, device->CreateEvent());
  FOREBAY_ASSIGN_OR_RETURN(losses_are_there_, device->CreateEvent());
  for (int layer = 0; layer < inventory_.num_layers(); ++layer) {
    FOREBAY_ASSIGN_OR_RETURN(used_.emplace_back(), device->CreateEvent());
  }
  block_ = std::make_unique<CudaBlock>(config_, context_.get(), workspace_);
  first_token_.reserve(static_cast<size_t>(options_.num_batches) + 1);
  return UploadRope(host_budget);
}

absl::StatusOr<std::unique_ptr<CudaDecoder>> CreateCudaDecoder(
    const DecoderConfig& config, const CudaDecoderOptions& options, Device* device,
    MemoryBudget* device_budget, MemoryBudget* host_budget, MatmulAlgorithms* algorithms) {
  FOREBAY_CHECK(device->kind() == DeviceKind::kCuda);
  FOREBAY_CHECK(!options.shares_gradients || !config.tied_embeddings);
  FOREBAY_CHECK(!options.vocabulary_in_parts || MayCutVocabulary(config));
  FOREBAY_CHECK(options.max_tokens > 0 && options.step_tokens >= options.max_tokens &&
                options.num_batches >= 1);
  auto decoder = std::make_unique<CudaLayerCompute>(config, options);
  FOREBAY_RETURN_IF_ERROR(decoder->Allocate(device, device_budget, host_budget, algorithms));
  return decoder;
}

}  // namespace forebay
