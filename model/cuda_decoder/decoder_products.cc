#include "forebay/model/cuda_decoder/decoder_products.h"

#include <algorithm>
#include <set>
#include <vector>

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
  const auto add = [&](const cuda::LinearProducts& of_one) {
    products.push_back(of_one.forward);
    products.push_back(of_one.backward_input);
    products.push_back(of_one.backward_weight);
  };
  const auto of = [&](const LinearTensors& linear, int64_t tokens, const cuda::LinearOutput& y,
                      const cuda::LinearGradient& dy) {
    const float* const gradient = reinterpret_cast<float*>(layer) + linear.weight;
    return cuda::ProductsOf(context, linear.View(weights), tokens, y, dy, gradient);
  };
  for (const BlockTensors& block : tensors.blocks) {
    for (const LinearTensors* linear :
         {&block.query, &block.key, &block.value, &block.attention_out, &block.gate, &block.up,
          &block.down}) {
      if (linear->present()) add(of(*linear, options.max_tokens, {.dtype = options.dtype}, {}));
    }
  }
  // The loss goes through the tokens in chunks, and through a large vocabulary in parts, of which
  // the last may be smaller; the gradient of its input is of all parts at once.
  const int64_t vocab = config.vocab_size;
  const int64_t chunk = cuda::LossChunkTokens(options.max_tokens, vocab, cuda::kMostLogits);
  const int64_t stride = cuda::LogitStride(vocab);
  const cuda::LinearOutput logits = {.stride = stride, .dtype = DType::kF32};
  const cuda::LinearGradient dlogits = {.stride = stride};
  for (const int64_t tokens : {chunk, options.max_tokens % chunk}) {
    if (tokens == 0) continue;
    const cuda::LinearProducts whole = of(tensors.projection, tokens, logits, dlogits);
    if (!VocabularyCut().Cuts(vocab)) {
      add(whole);
      continue;
    }
    products.push_back(whole.backward_input);
    for (const int64_t rows : {VocabularyCut().part_rows, vocab % VocabularyCut().part_rows}) {
      if (rows == 0) continue;
      LinearTensors part = tensors.projection;
      part.out = rows;
      const cuda::LinearProducts of_part = of(part, tokens, logits, dlogits);
      products.push_back(of_part.forward);
      products.push_back(of_part.backward_weight);
    }
  }
  return products;
}

absl::Status ChooseAlgorithms(cuda::Context& context, Device* device, MemoryBudget* budget,
                              const std::vector<MatmulProduct>& products,
                              MatmulAlgorithms& algorithms) {
  GpuMatmul& matmul = context.matmul();
  if (algorithms.card != device->card() || algorithms.library != matmul.LibraryVersion()) {
    algorithms = {.card = device->card(),
                  .library = matmul.LibraryVersion(),
                  .chosen = {},
                  .may_measure = algorithms.may_measure};
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
      algorithms.chosen.erase(known);
    }
    unknown.push_back(product);
    operand_bytes = std::max(operand_bytes, GpuMatmul::OperandBytes(product));
  }
  if (!algorithms.may_measure) return absl::OkStatus();
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
