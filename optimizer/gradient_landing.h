// Brings a layer's gradients from a device to RAM, where they are rounded and held.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/layer_compute.h"

namespace forebay {

// Owned by one thread.
class GradientLanding {
 public:
  // For layers of at most `largest_layer_elems`. Create charges ChargedBytes(). `device` and
  // `budget` must outlive it. OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GradientLanding>> Create(Device* device,
                                                                 int64_t largest_layer_elems,
                                                                 MemoryBudget* budget);

  static int64_t ChargedBytes(int64_t largest_layer_elems) {
    return HostBuffer::ChargedBytes(largest_layer_elems * int64_t{sizeof(float)});
  }

  // The gradients in RAM, complete, valid until the next call. The memory of `gradient` is free for
  // reuse on return. EnvironmentError when the device failed.
  absl::StatusOr<std::span<const float>> Fetch(const LayerGradient& gradient);

 private:
  GradientLanding() = default;

  // In this order: the stream ends before the memory that it writes to.
  HostBuffer memory_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace forebay
