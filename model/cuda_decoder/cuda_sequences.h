// Sequences on a GPU (model/sequences.h): keys and values lie there or in RAM, weights come in
// leases whose data lie there (step/gpu_window.h). Keys, values and activations are of the weights'
// type.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/sequences.h"

namespace forebay {

struct CudaSequencesOptions {
  DType dtype = DType::kBF16;
  bool tf32 = false;                 // fp32 products may round their inputs to TF32
  int64_t max_tokens = 0;            // of all sequences that go through the layers in one pass
  std::vector<int64_t> max_lengths;  // of each sequence
  // Keys and values of the first so many blocks lie in RAM, and come to the device for each pass.
  // One or two of them save no memory there.
  int num_cached_in_ram = 0;
};

// Bytes that CreateCudaSequences charges to the device's budget.
struct CudaSequencesMemory {
  int64_t workspace_bytes = 0;  // of one block, and the operators' scratch
  int64_t cache_bytes = 0;      // keys, values, and tables of positions
  int64_t token_bytes = 0;      // new tokens, and logits
};
CudaSequencesMemory CudaSequencesMemoryFor(const DecoderConfig& config,
                                           const CudaSequencesOptions& options);
// The same on the host.
int64_t CudaSequencesHostBytes(const DecoderConfig& config, const CudaSequencesOptions& options);

// `device`, a CUDA device, and both budgets outlive what is made; it outlives the sources that
// Extend is given. BadInputError where a sequence would be longer than the model's positions;
// OutOfMemoryError; EnvironmentError, also where this build has no CUDA code.
absl::StatusOr<std::unique_ptr<Sequences>> CreateCudaSequences(const DecoderConfig& config,
                                                               const CudaSequencesOptions& options,
                                                               Device* device,
                                                               MemoryBudget* device_budget,
                                                               MemoryBudget* host_budget);

}  // namespace forebay
