// Which matrix products a decoder computes in training, and the algorithms that they are computed
// by. Private to this folder.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "forebay/device/gpu_matmul.h"
#include "forebay/device/matmul_algorithms.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/decoder_tensors.h"

namespace forebay {

// Of a micro-batch of options.max_tokens. Others (of held-out rows, fewer of them) are computed by
// what the library guesses.
std::vector<MatmulProduct> TrainingProducts(const cuda::Context& context,
                                            const DecoderConfig& config,
                                            const DecoderTensors& tensors,
                                            const CudaDecoderOptions& options);

// Has `products` computed by `algorithms`, and measures those that it has none for, if it may,
// which are added to it. Those of other products, of another card or library are forgotten before.
// Nothing was multiplied yet. Takes the operands of the largest product that is measured from the
// budget, and gives them back. OutOfMemoryError, EnvironmentError.
absl::Status ChooseAlgorithms(cuda::Context& context, Device* device, MemoryBudget* budget,
                              const std::vector<MatmulProduct>& products,
                              MatmulAlgorithms& algorithms);

}  // namespace forebay
