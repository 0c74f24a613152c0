#include "forebay/optimizer/decay_runs.h"

#include "forebay/base/check.h"

namespace forebay {
namespace {

std::span<const TensorSpec> TensorsOf(const Inventory& inventory, int layer) {
  const LayerSpec& spec = inventory.layers()[layer];
  return std::span(inventory.tensors()).subspan(spec.first_tensor, spec.num_tensors);
}

}  // namespace

std::vector<DecayRun> DecayRunsOf(const Inventory& inventory, int layer) {
  std::vector<DecayRun> runs;
  for (const TensorSpec& tensor : TensorsOf(inventory, layer)) {
    if (runs.empty()) {
      runs.push_back({0, 0, tensor.decay});
    } else if (runs.back().decay != tensor.decay) {
      runs.back().end_elem = tensor.offset_elems;
      runs.push_back({tensor.offset_elems, 0, tensor.decay});
    }
  }
  FOREBAY_CHECK(!runs.empty());
  runs.back().end_elem = inventory.layers()[layer].num_elems;
  return runs;
}

std::vector<Padding> PaddingOf(const Inventory& inventory, int layer) {
  std::vector<Padding> paddings;
  int64_t at = 0;
  const auto add_until = [&](int64_t end) {
    if (at < end) paddings.push_back({at, end});
  };
  for (const TensorSpec& tensor : TensorsOf(inventory, layer)) {
    add_until(tensor.offset_elems);
    at = tensor.offset_elems + tensor.num_elems;
  }
  add_until(inventory.layers()[layer].num_elems);
  return paddings;
}

}  // namespace forebay
