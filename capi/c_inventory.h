// The type forebay_inventory.
#pragma once

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "forebay/base/tensor_spec.h"

struct forebay_inventory {
  mutable std::mutex mutex;  // of all that follows
  forebay::Inventory inventory;
  std::vector<int> group_of_tensor;
  std::unordered_set<std::string> names;
  enum class Layer { kNone, kStreamed, kRaw } layer = Layer::kNone;  // that the next tensor is of
};
