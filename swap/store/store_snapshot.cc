#include "forebay/swap/store/store_snapshot.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {

StoreSnapshot::StoreSnapshot(TensorStore* store) : store_(store) {
  TensorStore::Impl& impl = *store->impl_;
  const std::lock_guard guard(impl.slots_mutex);
  FOREBAY_CHECK(impl.has_commit && !impl.record.overwriting);
  slot_ = impl.committed_slot();
  step_ = impl.committed.step;
  ++impl.snapshots[slot_];
}

StoreSnapshot::~StoreSnapshot() {
  // Release: what was read here was read before it is written over.
  store_->impl_->snapshots[slot_].fetch_sub(1, std::memory_order_release);
}

absl::Status StoreSnapshot::ReadTensor(const TensorSpec& tensor, TensorPlane plane,
                                       int64_t first_elem, std::span<float> out) const {
  absl::Status status = store_->impl_->ReadTensor(tensor, plane, first_elem, out, slot_);
  read_failed_ |= !status.ok();
  return status;
}

absl::Status StoreSnapshot::ReadTensorW16(const TensorSpec& tensor, int64_t first_elem,
                                          std::span<uint16_t> out) const {
  absl::Status status = store_->impl_->ReadTensorW16(tensor, first_elem, out, slot_);
  read_failed_ |= !status.ok();
  return status;
}

absl::Status StoreSnapshot::ReadRaw(const TensorSpec& tensor, int64_t first_byte,
                                    std::span<std::byte> out) const {
  absl::Status status = store_->impl_->ReadRaw(tensor, first_byte, out, slot_);
  read_failed_ |= !status.ok();
  return status;
}

}  // namespace forebay
