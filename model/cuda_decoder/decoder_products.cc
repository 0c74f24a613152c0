#include "forebay/model/cuda_decoder/decoder_products.h"

#include <algorithm>
#include <set>

#include "forebay/base/errors.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/model/cuda/linear_products.h"
#include "forebay/model/cuda/loss_sizes.h"

namespace forebay {

std::vector<MatmulProduct> TrainingProducts(const cuda::Context& context,
                                            const DecoderConfig& config,
                                            const DecoderTensors& tensors,
                                            const CudaDecoderOptions& options) {
  // Layers begin at addresses as this is: it is for what tensors are aligned to, and not read.
  std::byte* const layer = context.scratch().address();
  const LayerWeights weights = {.dtype = options.dtype, .data = {layer, 1}};
  std::vector<MatmulProduct> products;
  const auto add = [&](const LinearTensors& linear, int64_t tokens, const cuda::LinearOutput& y,
                       const cuda::LinearGradient& dy) {
    if (!linear.present()) return;
    const float* const gradient = reinterpret_cast<float*>(layer) + linear.weight;
    std::ranges::copy(cuda::ProductsOf(context, linear.View(weights), tokens, y, dy, gradient),
                      std::back_inserter(products));
  };
  for (const BlockTensors& block : tensors.blocks) {
    for (const LinearTensors* linear :
         {&block.query, &block.key, &block.value, &block.attention_out, &block.gate, &block.up,
          &block.down}) {
      add(*linear, options.max_tokens, {.dtype = options.dtype}, {});
    }
  }
  // The loss goes through the tokens in chunks, of which the last may be smaller.
  const int64_t vocab = config.vocab_size;
  const int64_t chunk = cuda::LossChunkTokens(options.max_tokens, vocab, cuda::kMostLogits);
  const int64_t stride = cuda::LogitStride(vocab);
  for (const int64_t tokens : {chunk, options.max_tokens % chunk}) {
    add(tensors.projection, tokens, {.stride = stride, .dtype = DType::kF32}, {.stride = stride});
  }
  return products;
}

absl::Status ChooseAlgorithms(cuda::Context& context, Device* device, MemoryBudget* budget,
                              const std::vector<MatmulProduct>& products,
                              MatmulAlgorithms& algorithms) {
  GpuMatmul& matmul = context.matmul();
  if (algorithms.card != device->card() || algorithms.library != matmul.LibraryVersion()) {
    algorithms = {.card = device->card(), .library = matmul.LibraryVersion(), .chosen = {}};
  }
  const std::set wanted(products.begin(), products.end());
  std::erase_if(algorithms.chosen, [&](const auto& one) { return !wanted.contains(one.first); });
  std::vector<MatmulProduct> unknown;
  int64_t operand_bytes = 0;
  for (const MatmulProduct& product : wanted) {
    const auto known = algorithms.chosen.find(product);
    if (known != algorithms.chosen.end()) {
      FOREBAY_ASSIGN_OR_RETURN(const bool is_used, matmul.Use(product, known->second));
      if (is_used) continue;
    }
    unknown.push_back(product);
    operand_bytes = std::max(operand_bytes, GpuMatmul::OperandBytes(product));
  }
  FOREBAY_ASSIGN_OR_RETURN(
      const DeviceAllocation operands,
      DeviceAllocation::Create(budget, device, "measuring matrix products", operand_bytes));
  for (const MatmulProduct& product : unknown) {
    FOREBAY_ASSIGN_OR_RETURN(algorithms.chosen[product],
                             matmul.Tune(product, operands.address(), context.stream()));
  }
  return absl::OkStatus();
}

}  // namespace forebay
