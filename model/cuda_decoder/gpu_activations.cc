#include "forebay/model/cuda_decoder/gpu_activations.h"

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
  FOREBAY_ASSIGN_OR_RETURN(
      made->in_ram_,
      HostBuffer::Create(host_budget, "activation checkpoints of the GPU",
                         shape.num_in_ram * shape.activation_bytes, {.device = device}));
  for (int i = 0; shape.num_in_ram > 0 && i < shape.num_buffers; ++i) {
    Transfer& transfer = made->transfers_.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(transfer.may_begin, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(transfer.is_done, device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(made->copies_, device->CreateStream());
  return made;
}

// Behind all that was asked of the computation so far. Errors are Await's.
template <typename Copy>
void GpuActivations::Start(int layer, const Copy& copy) {
  FOREBAY_CHECK(layer >= 0 && layer < shape_.num_in_ram);
  Transfer& transfer = TransferOf(layer);
  transfer.layer = layer;
  failure_.Update(compute_.Record(*transfer.may_begin));
  failure_.Update(copies_->WaitFor(*transfer.may_begin));
  failure_.Update(copy());
  failure_.Update(copies_->Record(*transfer.is_done));
  copied_bytes_ += shape_.activation_bytes;
}

void GpuActivations::StartWrite(int layer) {
  Start(layer, [&] { return copies_->CopyToHost(InRam(layer), OnDevice(layer)); });
}

void GpuActivations::StartRead(int layer) {
  Start(layer, [&] { return copies_->CopyToDevice(OnDevice(layer), InRam(layer)); });
}

absl::Status GpuActivations::Await(int layer) {
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (layer < 0 || layer >= shape_.num_in_ram) return absl::OkStatus();
  Transfer& transfer = TransferOf(layer);
  if (transfer.layer != layer) return absl::OkStatus();
  transfer.layer = -1;
  return compute_.WaitFor(*transfer.is_done);
}

void GpuActivations::Abandon() {
  for (Transfer& transfer : transfers_) {
    if (transfer.layer >= 0) failure_.Update(compute_.WaitFor(*transfer.is_done));
    transfer.layer = -1;
  }
}

}  // namespace forebay
