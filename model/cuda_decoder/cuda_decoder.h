// A decoder's layers on a GPU: what LayerWalk computes with in training and evaluation. Activations
// are of the weights' type, gradients of weights fp32. Weights come in leases whose data lie on the
// device (step/gpu_window.h).
//
// All work goes to one stream, in the order of the calls, and the host waits for none of it but in
// LossSumOf.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/device/matmul_algorithms.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"

namespace forebay {

struct CudaDecoderOptions {
  DType dtype = DType::kBF16;  // of weights and activations
  bool tf32 = false;           // fp32 products may round their inputs to TF32
  int64_t max_tokens = 0;      // of the largest micro-batch
  int64_t step_tokens = 0;     // of all micro-batches of a pass together
  int64_t num_batches = 1;     // of a pass, at most
  // As the walk's operations have both (Chain). The activations that are spilled wait for their
  // backward pass in RAM, or in a storage that is given (SpillTo); the others on the device.
  int segment_layers = 1;
  int num_spilled_activations = 0;
  bool spills_to_storage = false;
  // The gradients of blocks are made where those of the embedding and the head are. It takes less
  // memory, and the first block waits until the head's have left. Not with tied embeddings, whose
  // gradients are made while those of blocks are.
  bool shares_gradients = false;
  // As BlockRecompute has it: the gradients of the embedding and of the output projection are made
  // in parts, where those of blocks are.
  bool vocabulary_in_parts = false;
  bool training = true;  // else for passes that keep no activation and go forward alone
};

// Bytes that CreateCudaDecoder charges to the device's budget.
struct CudaDecoderMemory {
  int64_t workspace_bytes = 0;  // of one block, and the operators' scratch
  // Kept on the device, and their gradients of one layer; with vocabulary_in_parts also the inputs
  // of the output layer.
  int64_t activation_bytes = 0;
  // For weights: one block and the largest of the other layers, or where they share it the larger;
  // with vocabulary_in_parts the larger of a block and a part.
  int64_t gradient_bytes = 0;
  int64_t micro_batch_bytes = 0;  // tokens, and losses

  int64_t total() const {
    return workspace_bytes + activation_bytes + gradient_bytes + micro_batch_bytes;
  }
};
CudaDecoderMemory CudaDecoderMemoryFor(const DecoderConfig& config,
                                       const CudaDecoderOptions& options);
// A layer's activation, of all micro-batches.
int64_t CudaActivationBytes(const DecoderConfig& config, const CudaDecoderOptions& options);
// The same as CudaDecoderMemoryFor on the host.
int64_t CudaDecoderHostBytes(const DecoderConfig& config, const CudaDecoderOptions& options);

// One for each direction of a transfer, between GPU and RAM and between RAM and the storage, and
// one more, so that neither waits for the other.
inline constexpr int kActivationStorageBuffers = 3;

class CudaDecoder : public LayerCompute {
 public:
  // Where the walk's operations spill activations; it lives as long as this.
  virtual ActivationStorage& activations() = 0;
  // Once, before the first pass that spills. `storage` outlives EndSpilling; it has
  // kActivationStorageBuffers of CudaActivationBytes at least, or one for each layer that is
  // spilled where those are fewer, in memory of the host that is pinned for the device. Requires:
  // spills_to_storage.
  virtual void SpillTo(ActivationStorage* storage) = 0;
  // Nothing is copied from or to the storage any more when it returns.
  virtual void EndSpilling() = 0;
};

// `device`, a CUDA device, and both budgets outlive what is made, which is owned by one thread.
// `algorithms`: those that the products of training are computed by. What it lacks, or has of
// another card or library, is measured before the first pass, and added to it. nullptr: the library
// guesses all, as it does where nothing is trained.
// OutOfMemoryError; EnvironmentError, also where this build has no CUDA code.
absl::StatusOr<std::unique_ptr<CudaDecoder>> CreateCudaDecoder(
    const DecoderConfig& config, const CudaDecoderOptions& options, Device* device,
    MemoryBudget* device_budget, MemoryBudget* host_budget, MatmulAlgorithms* algorithms = nullptr);

}  // namespace forebay
