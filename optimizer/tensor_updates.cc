#include "forebay/optimizer/tensor_updates.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

TensorUpdates::TensorUpdates(const OptimizerConfig& rule, const Inventory& inventory,
                             ParameterGroups groups, std::span<const int64_t> missed)
    : rule_(rule),
      inventory_(inventory),
      of_tensor_(std::move(groups.of_tensor)),
      next_groups_(std::move(groups.groups)),
      without_(inventory.tensors().size()),
      groups_(next_groups_),
      left_alone_(inventory.tensors().size()),
      by_tensor_(static_cast<size_t>(inventory.num_streamed_layers())),
      missed_(missed.begin(), missed.end()) {
  missed_.resize(inventory.tensors().size());
  size_t most_tensors = 0;
  for (int layer = 0; layer < inventory.num_streamed_layers(); ++layer) {
    group_runs_.push_back(GroupRunsOf(inventory, layer, of_tensor_));
    tensor_runs_.push_back(TensorRunsOf(inventory, layer, of_tensor_));
    most_tensors = std::max(most_tensors, tensor_runs_.back().size());
  }
  as_zeros_.reserve(most_tensors);
}

absl::StatusOr<std::unique_ptr<TensorUpdates>> TensorUpdates::Create(
    const OptimizerConfig& rule, const Inventory& inventory, ParameterGroups groups,
    std::span<const int64_t> missed) {
  FOREBAY_RETURN_IF_ERROR(CheckGroups(rule, inventory, groups));
  if (!missed.empty() && missed.size() != inventory.tensors().size()) {
    return UsageError(fmt::format(
        "optimizer: missed updates are given for {} tensors, and the inventory has {}. Give one "
        "number for each, or none",
        missed.size(), inventory.tensors().size()));
  }
  for (size_t i = 0; i < missed.size(); ++i) {
    if (missed[i] >= 0) continue;
    return UsageError(
        fmt::format("optimizer: tensor '{}' cannot have missed {} updates. Give a number from 0 on",
                    inventory.tensors()[i].name, missed[i]));
  }
  return std::unique_ptr<TensorUpdates>(
      new TensorUpdates(rule, inventory, std::move(groups), missed));
}

absl::Status TensorUpdates::SetGroups(std::span<const ParameterGroup> groups, bool may_freeze) {
  if (groups.size() != next_groups_.size()) {
    return UsageError(
        fmt::format("optimizer: {} parameter groups are set, and there are {}. Give the settings "
                    "of each: which tensors are of which is fixed when the optimizer is made",
                    groups.size(), next_groups_.size()));
  }
  FOREBAY_RETURN_IF_ERROR(CheckSettings(rule_, groups));
  for (size_t i = 0; i < groups.size() && !may_freeze; ++i) {
    if (groups[i].frozen == next_groups_[i].frozen) continue;
    return UsageError(fmt::format(
        "optimizer: parameter group {} (of those from 0 on) is {} in the midst of a step, whose "
        "norm counts its gradients or does not. Do that before the step's first gradient is "
        "handed over, or abandon the step",
        i, groups[i].frozen ? "frozen" : "set free"));
  }
  std::ranges::copy(groups, next_groups_.begin());
  return absl::OkStatus();
}

// ---- The step that is handed over

absl::Status TensorUpdates::CheckHand(int layer, std::span<const int> without_gradient) const {
  const auto num_tensors = static_cast<int>(inventory_.tensors().size());
  for (const int tensor : without_gradient) {
    if (tensor >= 0 && tensor < num_tensors && inventory_.tensors()[tensor].layer == layer) {
      continue;
    }
    const LayerSpec& spec = inventory_.layers()[layer];
    return UsageError(fmt::format(
        "optimizer: tensor {} is said to be without a gradient, and is none of layer '{}'. Its "
        "tensors have the indices {} to {} in the inventory",
        tensor, spec.name, spec.first_tensor, spec.first_tensor + spec.num_tensors - 1));
  }
  return absl::OkStatus();
}

void TensorUpdates::Hand(int layer, std::span<const int> without_gradient) {
  for (const int tensor : without_gradient) without_[tensor] = 1;
  as_zeros_.clear();
  for (const GroupRun& run : tensor_runs_[layer]) {
    if (WillBeLeftAlone(run.tensor)) as_zeros_.push_back({run.first_elem, run.end_elem});
  }
}

std::vector<uint8_t> TensorUpdates::LeftAlone() const {
  std::vector<uint8_t> left_alone;
  for (size_t i = 0; i < without_.size(); ++i) {
    left_alone.push_back(WillBeLeftAlone(static_cast<int>(i)) ? 1 : 0);
  }
  return left_alone;
}

void TensorUpdates::AbandonStep() {
  std::ranges::fill(without_, uint8_t{0});
}

// ---- The update

absl::Status TensorUpdates::CheckStep(int64_t step) const {
  for (size_t i = 0; i < missed_.size(); ++i) {
    if (missed_[i] < step) continue;
    return UsageError(fmt::format(
        "optimizer: tensor '{}' has missed {} updates, and this is said to be update {} of all. "
        "Count every update that was made, from 1, whichever tensors it changed",
        inventory_.tensors()[i].name, missed_[i], step));
  }
  return absl::OkStatus();
}

void TensorUpdates::Prepare(int layer) {
  const std::vector<GroupRun>& runs = tensor_runs_[layer];
  bool by_tensor = false;
  for (const GroupRun& run : runs) {
    left_alone_[run.tensor] = WillBeLeftAlone(run.tensor) ? 1 : 0;
    by_tensor |= left_alone_[run.tensor] != 0 || missed_[run.tensor] != missed_[runs[0].tensor];
  }
  by_tensor_[layer] = by_tensor ? 1 : 0;
}

void TensorUpdates::BeginUpdate() {
  for (int layer = 0; layer < inventory_.num_streamed_layers(); ++layer) Prepare(layer);
  for (size_t i = 0; i < missed_.size(); ++i) missed_[i] += left_alone_[i];
  std::ranges::fill(without_, uint8_t{0});
}

UpdateScalars TensorUpdates::ScalarsOf(const UpdateScalars& step, const GroupRun& run) const {
  UpdateScalars scalars = forebay::ScalarsOf(step, groups_[run.group]);
  scalars.step -= missed_[run.tensor];
  return scalars;
}

}  // namespace forebay
