#include "forebay/train/plan/step_memory.h"

#include <algorithm>

namespace forebay {

StepMemory StepMemoryFor(const DecoderConfig& config, const Inventory& inventory,
                         int64_t tokens_per_step) {
  const auto elems = [&](int layer) { return inventory.layers()[layer].num_elems; };
  const int64_t head = elems(HeadLayer(config));
  int64_t block = config.tied_embeddings ? head : 0;
  for (int i = 0; i < config.num_layers; ++i) block = std::max(block, elems(BlockLayer(i)));
  const int64_t large = std::max(elems(EmbedLayer()), config.tied_embeddings ? 0 : head);
  const int64_t activation_bytes = tokens_per_step * config.hidden_size * 4;
  return {(config.num_layers + 1) * activation_bytes, activation_bytes, block * 4, large * 4};
}

}  // namespace forebay
