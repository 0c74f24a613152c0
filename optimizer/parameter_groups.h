// Parameter groups: tensors with settings of their own, and which stretches of a layer's flat
// vector belong to which. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/optimizer/kernels/update_rule.h"

namespace forebay {

struct ParameterGroup {
  double lr_scale = 1;  // times the learning rate of the step (1 there: the rate itself)
  double weight_decay = 0;
  // In place of the step's (UpdateScalars) and the rule's; beta1 of SGD's momentum.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> eps = std::nullopt;
  // Weights and moments stay what they are, whatever the gradients, which count as zero.
  bool frozen = false;
};

struct ParameterGroups {
  std::vector<ParameterGroup> groups;
  std::vector<int> of_tensor;  // by the tensor's index in the inventory
};

// Two: of the tensors that decay (TensorSpec::decay), and of the others.
ParameterGroups DecayGroups(const Inventory& inventory, double weight_decay);

// UsageError where the tensors do not fit the inventory, or a setting is none that `rule` can have.
absl::Status CheckGroups(const OptimizerConfig& rule, const Inventory& inventory,
                         const ParameterGroups& groups);
absl::Status CheckSettings(const OptimizerConfig& rule, std::span<const ParameterGroup> groups);

// The scalars of a step as a group has them. The rate is not among them: kernels take the group's
// share of it with the run, as its decay (TileRun).
UpdateScalars ScalarsOf(const UpdateScalars& step, const ParameterGroup& group);

// Elements [first_elem, end_elem) of a layer's flat vector are of one group.
struct GroupRun {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
  int group = 0;
  int tensor = 0;  // the first one, by its index in the inventory
};

// The runs of `layer` in order; they cover the whole padded vector. Neighbouring tensors of one
// group share a run. Padding belongs to the run before it: its weights, moments and gradients are
// zero and stay so whatever the settings. `of_tensor`: as ParameterGroups'.
std::vector<GroupRun> GroupRunsOf(const Inventory& inventory, int layer,
                                  std::span<const int> of_tensor);
// The same, with a run for each tensor.
std::vector<GroupRun> TensorRunsOf(const Inventory& inventory, int layer,
                                   std::span<const int> of_tensor);

// Elements [first_elem, end_elem) of a layer's flat vector.
struct ElemRange {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
};

// That belong to no tensor.
using Padding = ElemRange;
std::vector<Padding> PaddingOf(const Inventory& inventory, int layer);

}  // namespace forebay
