// The committed step of a store as it was when the snapshot was taken, for readers that work beside
// the steps that follow: an export while training goes on.
//
// Steps are written to the other slot, so nothing is copied. That ends with the next commit: then
// the other slot would be this one, and TensorStore::BeginWriting has to wait for the snapshot's
// end (TensorStore::AwaitsSnapshot).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// Thread-compatible: for one thread, which need not be the store's. The store must outlive it.
class StoreSnapshot {
 public:
  // Requires: a commit, and that it is not being overwritten.
  explicit StoreSnapshot(TensorStore* store);
  ~StoreSnapshot();
  StoreSnapshot(const StoreSnapshot&) = delete;
  StoreSnapshot& operator=(const StoreSnapshot&) = delete;

  const Inventory& inventory() const { return store_->inventory(); }
  const TileMap& tiles() const { return store_->tiles(); }
  const StoreUuid& uuid() const { return store_->uuid(); }
  int64_t step() const { return step_; }

  // As TensorStore's.
  absl::Status ReadTensor(const TensorSpec& tensor, TensorPlane plane, int64_t first_elem,
                          std::span<float> out) const;
  absl::Status ReadTensorW16(const TensorSpec& tensor, int64_t first_elem,
                             std::span<uint16_t> out) const;
  absl::Status ReadRaw(const TensorSpec& tensor, int64_t first_byte,
                       std::span<std::byte> out) const;
  // Whether one of the reads of tensors has ended with an error: what is wrong then is the store's.
  bool read_failed() const { return read_failed_; }

 private:
  TensorStore* const store_;
  uint32_t slot_ = 0;
  int64_t step_ = 0;
  mutable bool read_failed_ = false;
};

}  // namespace forebay
