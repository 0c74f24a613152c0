// Brings the gradients of layers from a device to RAM: rounded there, as they are to be held, and
// with the sums of their squares. While one is on its way the device may compute the next. One that
// is far larger than others comes in parts, so that no more memory is taken for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/layer_gradient.h"

namespace forebay {

// Owned by one thread.
class GradientLanding {
 public:
  // Parts of at most `part_elems`, a multiple of kNormBlockElems, are rounded to `dtype`. Create
  // charges DeviceBytes() to the device's budget, and ChargedBytes() to `budget`. All that is
  // pointed to must outlive it. OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<GradientLanding>> Create(Device* device, DType dtype,
                                                                 int64_t part_elems,
                                                                 MemoryBudget* device_budget,
                                                                 MemoryBudget* budget);

  // The elements of a part where nobody says how many, for layers of so many: as large as most
  // layers, so that those come whole, and where layers are small as large as 128 MiB of bf16.
  static int64_t PartElems(std::vector<int64_t> layer_elems);
  static int64_t DeviceBytes(DType dtype, int64_t part_elems);
  static int64_t ChargedBytes(DType dtype, int64_t part_elems);

  // Begins to bring the elements of the gradient (fp32), from its `first_elem`-th on, as many as a
  // part has or the rest. Its memory is borrowed until gradient.taken is reached, which is recorded
  // behind each part. At most two are on their way at one time. Returns where the next begins.
  // EnvironmentError.
  absl::StatusOr<int64_t> Start(const LayerGradient& gradient, int64_t first_elem = 0);
  // Waits for the one that was started first. In RAM until the second Start from here.
  // Has no missing tensors. EnvironmentError when the device failed. Requires: one is on its way.
  absl::StatusOr<LayerGradient> Land();
  bool AnyIsOnItsWay() const { return num_landed_ < num_started_; }
  // Forgets what is on its way.
  void Drop() { num_landed_ = num_started_; }

 private:
  // In RAM: the rounded gradient, behind it the sums.
  struct Place {
    HostBuffer memory;
    std::unique_ptr<Event> has_landed;
    int layer = -1;
    int64_t first_elem = 0;
    int64_t num_elems = 0;
  };
  GradientLanding(DType dtype, int64_t part_elems) : dtype_(dtype), part_elems_(part_elems) {}
  Place& PlaceOf(int64_t number) { return places_[number % std::ssize(places_)]; }
  int64_t SquaresOffset() const { return part_elems_ * SizeOf(dtype_); }

  const DType dtype_;
  const int64_t part_elems_;
  // In this order: the stream ends before the memory that it uses.
  DeviceAllocation on_device_;  // laid out as a place; one is enough, as the stream has an order
  std::array<Place, 2> places_;
  std::unique_ptr<Stream> stream_;
  int64_t num_started_ = 0;
  int64_t num_landed_ = 0;
};

}  // namespace forebay
