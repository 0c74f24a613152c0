#include "forebay/optimizer/parameter_groups.h"

#include "forebay/base/check.h"

namespace forebay {

ParameterGroups DecayGroups(const Inventory& inventory, double weight_decay) {
  ParameterGroups groups;
  groups.groups = {{.weight_decay = weight_decay}, {.weight_decay = 0}};
  for (const TensorSpec& tensor : inventory.tensors()) {
    groups.of_tensor.push_back(tensor.decay ? 0 : 1);
  }
  return groups;
}

std::vector<GroupRun> GroupRunsOf(const Inventory& inventory, int layer,
                                  std::span<const int> of_tensor) {
  FOREBAY_CHECK(of_tensor.size() == inventory.tensors().size());
  std::vector<GroupRun> runs;
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    const int group = of_tensor[tensor - inventory.tensors().data()];
    if (runs.empty()) {
      runs.push_back({0, 0, group});
    } else if (runs.back().group != group) {
      runs.back().end_elem = tensor->offset_elems;
      runs.push_back({tensor->offset_elems, 0, group});
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
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    add_until(tensor->offset_elems);
    at = tensor->offset_elems + tensor->num_elems;
  }
  add_until(inventory.layers()[layer].num_elems);
  return paddings;
}

}  // namespace forebay
