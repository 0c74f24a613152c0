#include "forebay/model/cuda_decoder/gpu_activations.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

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
  FOREBAY_ASSIGN_OR_RETURN(made->copies_, device->CreateStream());
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

std::span<std::byte> GpuActivations::InRam(int layer) const {
  const auto size = static_cast<size_t>(shape_.activation_bytes);
  if (storage_ == nullptr) return in_ram_.bytes().subspan(static_cast<size_t>(layer) * size, size);
  const std::span<std::byte> buffers = storage_->buffers();
  const int num_buffers = storage_->num_buffers();
  return buffers.subspan(static_cast<size_t>(layer % num_buffers) * (buffers.size() / num_buffers),
                         size);
}

// A transfer, behind all that was asked of the computation so far. Errors are Await's.
void GpuActivations::Begin(int layer) {
  FOREBAY_CHECK(layer >= 0 && layer < shape_.num_spilled);
  FOREBAY_CHECK((storage_ != nullptr) == shape_.in_storage);
  TransferOf(layer).layer = layer;
  failure_.Update(compute_.Record(*TransferOf(layer).may_begin));
}

template <typename Call>
void GpuActivations::Copy(int layer, const Call& copy) {
  failure_.Update(copies_->WaitFor(*TransferOf(layer).may_begin));
  failure_.Update(copy());
  failure_.Update(copies_->Record(*TransferOf(layer).is_done));
  copied_bytes_ += shape_.activation_bytes;
}

// The storage gets the activation that was copied last.
absl::Status GpuActivations::HandOver() {
  const int layer = std::exchange(to_hand_over_, -1);
  if (layer < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(TransferOf(layer).is_done->Await());
  storage_->StartWrite(layer);
  return absl::OkStatus();
}

// The GPU gets the activation that the storage reads.
absl::Status GpuActivations::TakeBack() {
  const int layer = std::exchange(to_take_back_, -1);
  if (layer < 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(storage_->Await(layer));
  Copy(layer, [&] { return copies_->CopyToDevice(OnDevice(layer), InRam(layer)); });
  return failure_;
}

// The storage's buffer for the layer is free to be read into: what the layer itself had in it was
// written, and what was read into it before is on the GPU.
absl::Status GpuActivations::AwaitStorageBuffer(int layer) {
  FOREBAY_RETURN_IF_ERROR(storage_->Await(layer));
  const int before = layer + storage_->num_buffers();
  if (before >= shape_.num_spilled) return absl::OkStatus();
  return TransferOf(before).is_done->Await();
}

void GpuActivations::StartWrite(int layer) {
  Begin(layer);
  if (storage_ != nullptr && failure_.ok()) {
    failure_.Update(HandOver());
    failure_.Update(storage_->Await(layer - storage_->num_buffers()));
    to_hand_over_ = layer;
  }
  if (!failure_.ok()) return;
  Copy(layer, [&] { return copies_->CopyToHost(InRam(layer), OnDevice(layer)); });
}

void GpuActivations::StartRead(int layer) {
  Begin(layer);
  if (storage_ == nullptr) {
    Copy(layer, [&] { return copies_->CopyToDevice(OnDevice(layer), InRam(layer)); });
    return;
  }
  failure_.Update(HandOver());
  failure_.Update(TakeBack());
  if (failure_.ok()) failure_.Update(AwaitStorageBuffer(layer));
  if (!failure_.ok()) return;
  storage_->StartRead(layer);
  to_take_back_ = layer;
}

absl::Status GpuActivations::Await(int layer) {
  FOREBAY_RETURN_IF_ERROR(failure_);
  // A buffer's next layer is about to be computed: the last one that is written has two behind it.
  if (to_hand_over_ >= 0 && layer + shape_.num_buffers >= to_hand_over_ + 2) {
    failure_.Update(HandOver());
  }
  if (layer < 0 || layer >= shape_.num_spilled) return failure_;
  Transfer& transfer = TransferOf(layer);
  if (transfer.layer != layer) return failure_;
  if (layer == to_take_back_) failure_.Update(TakeBack());
  transfer.layer = -1;
  failure_.Update(compute_.WaitFor(*transfer.is_done));
  return failure_;
}

void GpuActivations::Abandon() {
  for (Transfer& transfer : transfers_) {
    if (transfer.layer >= 0) failure_.Update(compute_.WaitFor(*transfer.is_done));
    transfer.layer = -1;
  }
  to_hand_over_ = to_take_back_ = -1;
  if (storage_ == nullptr) return;
  failure_.Update(copies_->Await());
  storage_->Abandon();
}

}  // namespace forebay
