#include "forebay/model/cuda_decoder/gpu_activations.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/stream_trace.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<GpuActivations>> GpuActivations::Create(
    const GpuActivationsShape& shape, Device* device, Stream* compute, MemoryBudget* device_budget,
    MemoryBudget* host_budget) {
  std::unique_ptr<GpuActivations> made(new GpuActivations(shape, compute));
  FOREBAY_ASSIGN_OR_RETURN(made->on_device_,
                           DeviceAllocation::Create(device_budget, device, "activation checkpoints",
                                                    shape.num_buffers * shape.activation_bytes));
  FOREBAY_ASSIGN_OR_RETURN(made->in_ram_,
                           HostBuffer::Create(host_budget, "activation checkpoints of the GPU",
                                              shape.RamBytes(), {.device = device}));
  for (int i = 0; shape.num_spilled > 0 && i < shape.num_buffers; ++i) {
    Transfer& transfer = made->transfers_.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(transfer.may_begin, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(transfer.is_done, device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(made->copies_, CreateTracedStream(device, "activations"));
  return made;
}

void GpuActivations::SpillTo(ActivationStorage* storage) {
  FOREBAY_CHECK(shape_.in_storage && storage_ == nullptr);
  // A buffer of the storage is read by a copy that is done when a buffer on the GPU is used again.
  FOREBAY_CHECK(storage->num_buffers() <= shape_.num_buffers);
  storage_ = storage;
}

void GpuActivations::EndSpilling() {
  copies_->Await().IgnoreError();  // whoever awaited a transfer was told
  storage_ = nullptr;
}

std::span<std::byte> GpuActivations::InRam(int place) const {
  const auto size = static_cast<size_t>(shape_.activation_bytes);
  if (storage_ == nullptr) return in_ram_.bytes().subspan(static_cast<size_t>(place) * size, size);
  const std::span<std::byte> buffers = storage_->buffers();
  const int num_buffers = storage_->num_buffers();
  return buffers.subspan(static_cast<size_t>(place % num_buffers) * (buffers.size() / num_buffers),
                         size);
}

// A transfer, behind all that was asked of the computation so far. Errors are Await's.
void GpuActivations::Begin(int place) {
  FOREBAY_CHECK(place >= 0 && place < shape_.num_spilled);
  FOREBAY_CHECK((storage_ != nullptr) == shape_.in_storage);
  TransferOf(place).place = place;
  failure_.Update(compute_.Record(*TransferOf(place).may_begin));
}

template <typename Call>
void GpuActivations::Copy(int place, const char* name, const Call& copy) {
  failure_.Update(copies_->WaitFor(*TransferOf(place).may_begin));
  {
    const StreamScope scope(*copies_, name, {.layer = place * shape_.segment_layers},
                            shape_.activation_bytes);
    failure_.Update(copy());
  }
  failure_.Update(copies_->Record(*TransferOf(place).is_done));
  copied_bytes_ += shape_.activation_bytes;
}

void GpuActivations::CopyBack(int place) {
  Copy(place, "activation to the GPU",
       [&] { return copies_->CopyToDevice(OnDevice(place), InRam(place)); });
}

// The storage gets the activation that was copied last.
absl::Status GpuActivations::HandOver() {
  const int place = std::exchange(to_hand_over_, -1);
  if (place < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(TransferOf(place).is_done->Await());
  storage_->StartWrite(place);
  return absl::OkStatus();
}

// The GPU gets the activation that the storage reads.
absl::Status GpuActivations::TakeBack() {
  const int place = std::exchange(to_take_back_, -1);
  if (place < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(storage_->Await(place));
  CopyBack(place);
  return failure_;
}

// The storage's buffer for the place is free to be read into: what the place itself had in it was
// written, and what was read into it before is on the GPU.
absl::Status GpuActivations::AwaitStorageBuffer(int place) {
  FOREBAY_RETURN_IF_ERROR(storage_->Await(place));
  const int before = place + storage_->num_buffers();
  if (before >= shape_.num_spilled) return absl::OkStatus();
  return TransferOf(before).is_done->Await();
}

void GpuActivations::StartWrite(int place) {
  Begin(place);
  if (storage_ != nullptr && failure_.ok()) {
    failure_.Update(HandOver());
    failure_.Update(storage_->Await(place - storage_->num_buffers()));
    to_hand_over_ = place;
  }
  if (!failure_.ok()) return;
  Copy(place, "activation to RAM",
       [&] { return copies_->CopyToHost(InRam(place), OnDevice(place)); });
}

void GpuActivations::StartRead(int place) {
  Begin(place);
  if (storage_ == nullptr) {
    CopyBack(place);
    return;
  }
  failure_.Update(HandOver());
  failure_.Update(TakeBack());
  if (failure_.ok()) failure_.Update(AwaitStorageBuffer(place));
  if (!failure_.ok()) return;
  storage_->StartRead(place);
  to_take_back_ = place;
}

absl::Status GpuActivations::Await(int place) {
  FOREBAY_RETURN_IF_ERROR(failure_);
  // A buffer's next activation is about to be computed: the last one that is written has two behind
  // it.
  if (to_hand_over_ >= 0 && place + shape_.num_buffers >= to_hand_over_ + 2) {
    failure_.Update(HandOver());
  }
  if (place < 0 || place >= shape_.num_spilled) return failure_;
  Transfer& transfer = TransferOf(place);
  if (transfer.place != place) return failure_;
  if (place == to_take_back_) failure_.Update(TakeBack());
  transfer.place = -1;
  failure_.Update(compute_.WaitFor(*transfer.is_done));
  return failure_;
}

void GpuActivations::Abandon() {
  for (Transfer& transfer : transfers_) {
    if (transfer.place >= 0) failure_.Update(compute_.WaitFor(*transfer.is_done));
    transfer.place = -1;
  }
  to_hand_over_ = to_take_back_ = -1;
  if (storage_ == nullptr) return;
  failure_.Update(copies_->Await());
  storage_->Abandon();
}

}  // namespace forebay
