// The activations of a decoder on a GPU: in as many buffers there as it was given, and the others
// in RAM until their backward pass, or through RAM in a storage, a disk's. Copies go over a stream
// of their own, in both directions. Private to this folder.
//
//   in RAM:     GPU -> RAM -> GPU; the host waits for nothing
//   in storage: GPU -> a buffer of the storage -> disk -> a buffer -> GPU
//
// On the way to a storage the host starts a transfer when the one before it is done. It finds that
// out with the next layer's transfer, and so it is two layers ahead of the GPU at most.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/activation_storage.h"

namespace forebay {

struct GpuActivationsShape {
  int num_buffers = 0;           // on the GPU; as Chain::num_spilled_activations leaves them
  int num_spilled = 0;           // those at the first so many places do not wait there
  int segment_layers = 1;        // the spilled one at place p is of layer p * segment_layers
  bool in_storage = false;       // they wait in one that SpillTo gives; else in RAM
  int64_t activation_bytes = 0;  // of one layer, all micro-batches

  int64_t RamBytes() const { return in_storage ? 0 : num_spilled * activation_bytes; }
};

// `buffers()` are addresses on the device. What Await is called for happens on the stream that
// computes: what is enqueued there from then on has the activation, or the free buffer.
class GpuActivations final : public ActivationStorage {
 public:
  // `compute`: the stream that fills and reads the buffers. All that is pointed to must outlive it.
  // OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GpuActivations>> Create(const GpuActivationsShape& shape,
                                                                Device* device, Stream* compute,
                                                                MemoryBudget* device_budget,
                                                                MemoryBudget* host_budget);
  // As CudaDecoder has them.
  void SpillTo(ActivationStorage* storage);
  void EndSpilling();

  std::span<std::byte> buffers() const override {
    return {on_device_.address(), static_cast<size_t>(on_device_.size_bytes())};
  }
  int num_buffers() const override { return shape_.num_buffers; }
  void StartWrite(int place) override;
  void StartRead(int place) override;
  // EnvironmentError where the device refused a transfer; errors of the storage.
  absl::Status Await(int place) override;
  void Abandon() override;

  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  // The transfer that was started last from or to a buffer.
  struct Transfer {
    std::unique_ptr<Event> may_begin;  // the computation has filled, or read, the buffer
    std::unique_ptr<Event> is_done;    // between the GPU and RAM
    int place = -1;                    // -1: nobody has to wait for one
  };

  GpuActivations(const GpuActivationsShape& shape, Stream* compute)
      : shape_(shape), compute_(*compute) {}
  std::byte* OnDevice(int place) const {
    return on_device_.address() + place % shape_.num_buffers * shape_.activation_bytes;
  }
  // Where the place's activation is in RAM, or passes through it.
  std::span<std::byte> InRam(int place) const;
  Transfer& TransferOf(int place) { return transfers_[place % shape_.num_buffers]; }
  void Begin(int place);
  template <typename Call>
  void Copy(int place, const char* name, const Call& copy);
  void CopyBack(int place);
  absl::Status HandOver();
  absl::Status TakeBack();
  absl::Status AwaitStorageBuffer(int place);

  const GpuActivationsShape shape_;
  Stream& compute_;
  // In this order: the stream ends before what its work uses.
  DeviceAllocation on_device_;
  HostBuffer in_ram_;                // by place
  std::vector<Transfer> transfers_;  // by buffer
  std::unique_ptr<Stream> copies_;
  ActivationStorage* storage_ = nullptr;
  int to_hand_over_ = -1;  // whose activation the storage gets when it is in RAM
  int to_take_back_ = -1;  // which the storage reads, for the GPU
  absl::Status failure_;
  int64_t copied_bytes_ = 0;
};

}  // namespace forebay
