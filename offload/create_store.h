// Makes the store of a plan from weights that come layer by layer: import of a checkpoint, and
// random initialisation. Never holds more than one layer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/offload/plan.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// The store that `plan` is for, in `directories`; who and where else are the caller's.
StoreOptions StoreOptionsOf(const OffloadPlan& plan, std::vector<std::string> directories);

// Writes the master weights of one tensor into `values` (fp32, the tensor's elements in order).
using TensorFiller = std::function<absl::Status(const TensorSpec& tensor, std::span<float> values)>;

// The same of a raw tensor, whose bytes are zero before.
using RawFiller = std::function<absl::Status(const TensorSpec& tensor, std::span<std::byte> bytes)>;

// Creates the store, writes all of it (the weights by `fill`, raw tensors by `fill_raw`, moments
// zero, and the space that the first steps will write to) and publishes `first_commit`. On error
// the new store's files are removed. `stop` (may be empty) is polled between tiles; true ends with
// InterruptedError. `on_space` (may be empty): as `progress` of TensorStore::WriteSpareSpace,
// behind the weights.
absl::StatusOr<std::unique_ptr<TensorStore>> CreateFilledStore(
    const StoreOptions& options, const Inventory& inventory, const TensorFiller& fill,
    const CommitInfo& first_commit, Engine* engine, MemoryBudget* budget,
    const std::function<bool()>& stop = {}, const std::function<void(double)>& on_space = {},
    const RawFiller& fill_raw = {});

}  // namespace forebay
