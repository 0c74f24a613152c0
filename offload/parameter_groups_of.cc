#include "forebay/offload/parameter_groups_of.h"

#include <fnmatch.h>

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<ParameterGroups> ParameterGroupsOf(const OffloadOptions& options,
                                                  const Inventory& inventory) {
  ParameterGroups groups = DecayGroups(inventory, options.weight_decay);
  if (options.decay_all) groups.groups[1] = groups.groups[0];
  if (options.lr <= 0 && !options.param_groups.empty()) {
    return UsageError(
        "--param_groups: rates of groups are relative to --lr, which is 0. Give it a value above "
        "0");
  }
  std::vector<bool> is_taken(inventory.tensors().size());
  for (size_t number = 0; number < options.param_groups.size(); ++number) {
    const ParamGroupOption& option = options.param_groups[number];
    // A group that leaves out its decay keeps that which each of its tensors would have: it is two.
    const int first = static_cast<int>(groups.groups.size());
    for (const double decay : {groups.groups[0].weight_decay, groups.groups[1].weight_decay}) {
      groups.groups.push_back({.lr_scale = option.lr.value_or(options.lr) / options.lr,
                               .weight_decay = option.weight_decay.value_or(decay)});
    }
    bool matches = false;
    bool takes = false;
    for (size_t i = 0; i < is_taken.size(); ++i) {
      const TensorSpec& tensor = inventory.tensors()[i];
      if (::fnmatch(option.match.c_str(), tensor.name.c_str(), 0) != 0) continue;
      matches = true;
      if (is_taken[i]) continue;
      takes = is_taken[i] = true;
      groups.of_tensor[i] = first + (tensor.decay ? 0 : 1);
    }
    if (takes) continue;
    return UsageError(fmt::format(
        "--param_groups: '{}' (group {}) {}. Names are those of the model's tensors, such as '{}' "
        "('forebay inspect MODEL --tensors' lists them); * stands for anything",
        option.match, number + 1,
        matches ? "matches only tensors of the groups before it" : "matches no tensor of the model",
        inventory.tensors().front().name));
  }
  return groups;
}

}  // namespace forebay
