// Parameter groups: tensors with settings of their own, and which stretches of a layer's flat
// vector belong to which. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"

namespace forebay {

struct ParameterGroup {
  double lr_scale = 1;  // times the learning rate of the step
  double weight_decay = 0;
};

struct ParameterGroups {
  std::vector<ParameterGroup> groups;
  std::vector<int> of_tensor;  // by the tensor's index in the inventory
};

// Two: of the tensors that decay (TensorSpec::decay), and of the others.
ParameterGroups DecayGroups(const Inventory& inventory, double weight_decay);

// Elements [first_elem, end_elem) of a layer's flat vector are of one group.
struct GroupRun {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
  int group = 0;
};

// The runs of `layer` in order; they cover the whole padded vector. Neighbouring tensors of one
// group share a run. Padding belongs to the run before it: its weights, moments and gradients are
// zero and stay so whatever the settings. `of_tensor`: as ParameterGroups'.
std::vector<GroupRun> GroupRunsOf(const Inventory& inventory, int layer,
                                  std::span<const int> of_tensor);

// Elements [first_elem, end_elem) of a layer's flat vector that belong to no tensor.
struct Padding {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
};
std::vector<Padding> PaddingOf(const Inventory& inventory, int layer);

}  // namespace forebay
