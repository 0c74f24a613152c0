// Which stretches of a layer's flat vector decay. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"

namespace forebay {

// Elements [first_elem, end_elem) of a layer's flat vector have one decay setting.
struct DecayRun {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
  bool decay = true;
};

// The runs of `layer` in order; they cover the whole padded vector. Neighbouring tensors of one
// setting share a run. Padding belongs to the run before it: its weights, moments and gradients are
// zero and stay so either way.
std::vector<DecayRun> DecayRunsOf(const Inventory& inventory, int layer);

// Elements [first_elem, end_elem) of a layer's flat vector that belong to no tensor.
struct Padding {
  int64_t first_elem = 0;
  int64_t end_elem = 0;
};
std::vector<Padding> PaddingOf(const Inventory& inventory, int layer);

}  // namespace forebay
