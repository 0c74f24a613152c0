// Where an export has the weights of a committed step from: a store, the stores of all ranks, or
// the ranks that train.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/store/store_snapshot.h"

namespace forebay {

// Used by one thread.
class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  virtual const Inventory& inventory() const = 0;
  virtual Layout layout() const = 0;
  virtual const StoreUuid& uuid() const = 0;
  virtual int64_t step() const = 0;
  // The elements of a tensor of the inventory from `first_elem` on: the masters; or, of the layouts
  // whose weights are bf16, what is stored.
  virtual absl::Status ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                                   std::span<float> out) const = 0;
  virtual absl::Status ReadW16(const TensorSpec& tensor, int64_t first_elem,
                               std::span<uint16_t> out) const = 0;
};

// The weights of one store that has whole layers.
class SnapshotSource final : public WeightsSource {
 public:
  // `snapshot` must outlive it.
  explicit SnapshotSource(const StoreSnapshot* snapshot) : snapshot_(snapshot) {}
  const Inventory& inventory() const override { return snapshot_->inventory(); }
  Layout layout() const override { return snapshot_->tiles().layout(); }
  const StoreUuid& uuid() const override { return snapshot_->uuid(); }
  int64_t step() const override { return snapshot_->step(); }
  absl::Status ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                           std::span<float> out) const override {
    return snapshot_->ReadTensor(tensor, TensorPlane::kMaster, first_elem, out);
  }
  absl::Status ReadW16(const TensorSpec& tensor, int64_t first_elem,
                       std::span<uint16_t> out) const override {
    return snapshot_->ReadTensorW16(tensor, first_elem, out);
  }

 private:
  const StoreSnapshot* const snapshot_;
};

}  // namespace forebay
