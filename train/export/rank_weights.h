// The weights of a run whose ranks have a part of each layer, for an export at its end: each rank
// gives its part to the others.
#pragma once

#include <functional>
#include <utility>

#include "forebay/collective/communicator.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/train/export/weights_source.h"

namespace forebay {

// Every rank makes the same reads in the same order: the one that exports by WriteWeights, the
// others by ReadAllWeights (export_weights.h). Reads: EnvironmentError of the ranks; the errors of
// StoreSnapshot and of `go_on`.
class RankWeights final : public WeightsSource {
 public:
  // `own`: the rank's own part. `go_on`: called before each read, and what it returns is the same
  // of all ranks. All must outlive it.
  RankWeights(const InventoryParts* parts, const StoreSnapshot* own, Communicator* ranks,
              std::function<absl::Status()> go_on)
      : parts_(parts), own_(own), ranks_(ranks), go_on_(std::move(go_on)) {}
  const Inventory& inventory() const override { return parts_->whole(); }
  Layout layout() const override { return own_->tiles().layout(); }
  const StoreUuid& uuid() const override { return own_->uuid(); }
  int64_t step() const override { return own_->step(); }
  absl::Status ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                           std::span<float> out) const override;
  absl::Status ReadW16(const TensorSpec& tensor, int64_t first_elem,
                       std::span<uint16_t> out) const override;

 private:
  template <typename T, typename Read>
  absl::Status ReadParts(const TensorSpec& tensor, int64_t first_elem, std::span<T> out,
                         const Read& read) const;

  const InventoryParts* const parts_;
  const StoreSnapshot* const own_;
  Communicator* const ranks_;
  const std::function<absl::Status()> go_on_;
};

}  // namespace forebay
