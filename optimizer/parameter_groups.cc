#include "forebay/optimizer/parameter_groups.h"

#include <cmath>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

absl::Status BadSetting(size_t group, std::string_view name, double value, std::string_view range) {
  return UsageError(
      fmt::format("optimizer: parameter group {} (of those from 0 on) has a {} of "
                  "{}. Give it {}",
                  group, name, value, range));
}

absl::Status CheckBeta(const OptimizerConfig& rule, size_t number, std::string_view name,
                       std::optional<double> beta) {
  if (!beta.has_value() || !HasBetas(rule.kind)) return absl::OkStatus();
  if (*beta >= 0 && *beta < 1) return absl::OkStatus();
  return BadSetting(number, name, *beta, "a number from 0 on, below 1");
}

absl::Status CheckMomentum(const OptimizerConfig& rule, size_t number,
                           std::optional<double> momentum) {
  if (!momentum.has_value() || rule.kind != OptimizerKind::kSgd) return absl::OkStatus();
  if (!HasFirstMoment(rule) && *momentum != 0) {
    return BadSetting(number, "momentum (beta1)", *momentum,
                      "0, as the rule has no momentum, and so the store none, or make the store "
                      "with a momentum");
  }
  if (*momentum >= 0 && std::isfinite(*momentum)) return absl::OkStatus();
  return BadSetting(number, "momentum (beta1)", *momentum, "a number from 0 on");
}

}  // namespace

ParameterGroups DecayGroups(const Inventory& inventory, double weight_decay) {
  ParameterGroups groups;
  groups.groups = {{.weight_decay = weight_decay}, {.weight_decay = 0}};
  for (const TensorSpec& tensor : inventory.tensors()) {
    groups.of_tensor.push_back(tensor.decay ? 0 : 1);
  }
  return groups;
}

absl::Status CheckGroups(const OptimizerConfig& rule, const Inventory& inventory,
                         const ParameterGroups& groups) {
  const auto num_groups = static_cast<int>(groups.groups.size());
  if (groups.of_tensor.size() != inventory.tensors().size()) {
    return UsageError(fmt::format(
        "optimizer: parameter groups are given for {} tensors, and the inventory has {}. Name the "
        "group of each",
        groups.of_tensor.size(), inventory.tensors().size()));
  }
  for (size_t i = 0; i < groups.of_tensor.size(); ++i) {
    if (groups.of_tensor[i] >= 0 && groups.of_tensor[i] < num_groups) continue;
    return UsageError(
        fmt::format("optimizer: tensor '{}' is of parameter group {}, and there are {}. Name one "
                    "from 0 on",
                    inventory.tensors()[i].name, groups.of_tensor[i], num_groups));
  }
  return CheckSettings(rule, groups.groups);
}

absl::Status CheckSettings(const OptimizerConfig& rule, std::span<const ParameterGroup> groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    if (!std::isfinite(group.lr_scale)) {
      return BadSetting(i, "lr_scale", group.lr_scale, "a finite number");
    }
    if (!std::isfinite(group.weight_decay)) {
      return BadSetting(i, "weight_decay", group.weight_decay, "a finite number");
    }
    FOREBAY_RETURN_IF_ERROR(CheckBeta(rule, i, "beta1", group.beta1));
    FOREBAY_RETURN_IF_ERROR(CheckBeta(rule, i, "beta2", group.beta2));
    FOREBAY_RETURN_IF_ERROR(CheckMomentum(rule, i, group.beta1));
    const double eps = group.eps.value_or(1);
    if (HasEps(rule.kind) && !(static_cast<float>(eps) > 0 && std::isfinite(eps))) {
      // As fp32, in which the kernels have it: else 0/0 where a gradient is zero.
      return BadSetting(i, "eps", eps, "a number above 0 (1e-45 or more)");
    }
  }
  return absl::OkStatus();
}

UpdateScalars ScalarsOf(const UpdateScalars& step, const ParameterGroup& group) {
  UpdateScalars scalars = step;
  if (group.beta1.has_value()) scalars.beta1 = group.beta1;
  if (group.beta2.has_value()) scalars.beta2 = group.beta2;
  if (group.eps.has_value()) scalars.eps = group.eps;
  return scalars;
}

std::vector<GroupRun> TensorRunsOf(const Inventory& inventory, int layer,
                                   std::span<const int> of_tensor) {
  FOREBAY_CHECK(of_tensor.size() == inventory.tensors().size());
  std::vector<GroupRun> runs;
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    const auto index = static_cast<int>(tensor - inventory.tensors().data());
    if (!runs.empty()) runs.back().end_elem = tensor->offset_elems;
    runs.push_back({runs.empty() ? 0 : tensor->offset_elems, 0, of_tensor[index], index});
  }
  FOREBAY_CHECK(!runs.empty());
  runs.back().end_elem = inventory.layers()[layer].num_elems;
  return runs;
}

std::vector<GroupRun> GroupRunsOf(const Inventory& inventory, int layer,
                                  std::span<const int> of_tensor) {
  std::vector<GroupRun> runs;
  for (const GroupRun& of_one : TensorRunsOf(inventory, layer, of_tensor)) {
    if (!runs.empty() && runs.back().group == of_one.group) {
      runs.back().end_elem = of_one.end_elem;
    } else {
      runs.push_back(of_one);
    }
  }
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
