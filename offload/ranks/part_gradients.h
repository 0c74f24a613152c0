// Adds the gradients that the parts of a step's data have made of a layer: in the order of the
// parts, in fp32, as ranks add theirs (collective/sum_in_rank_order.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/process/parallel.h"
#include "forebay/device/device.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/layer_gradient.h"

namespace forebay {

// Owned by one thread.
class PartGradients {
 public:
  virtual ~PartGradients() = default;
  // [number of parts], each of a whole layer, the same, in fp32. If they are on devices, nothing is
  // waited for. EnvironmentError.
  virtual absl::Status Add(std::span<const LayerGradient> of_parts) = 0;
  // The sum that was made last.
  virtual LayerGradient Sum() = 0;
};

// On the host.
class HostPartGradients final : public PartGradients {
 public:
  // For layers of at most `largest_elems`. `pool` and `budget` outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<HostPartGradients>> Create(int64_t largest_elems,
                                                                   ThreadPool* pool,
                                                                   MemoryBudget* budget);
  static int64_t ChargedBytes(int64_t largest_elems);

  absl::Status Add(std::span<const LayerGradient> of_parts) override;
  LayerGradient Sum() override { return sum_; }

 private:
  explicit HostPartGradients(ThreadPool* pool) : pool_(pool) {}

  ThreadPool* const pool_;
  HostBuffer buffer_;
  LayerGradient sum_;
};

// Each part on a GPU of its own, and the sum on the first one. Gradients of the others go there
// through RAM, one layer after the other, while the GPUs compute the layer before.
class GpuPartGradients final : public PartGradients {
 public:
  // Charges DeviceBytes() to the first one's budget, and ChargedBytes() to `budget`. All that is
  // pointed to outlives it. OutOfMemoryError, EnvironmentError. Requires: two devices or more.
  static absl::StatusOr<std::unique_ptr<GpuPartGradients>> Create(std::span<Device* const> devices,
                                                                  int64_t largest_elems,
                                                                  MemoryBudget* first_device_budget,
                                                                  MemoryBudget* budget);
  ~GpuPartGradients() override;
  static int64_t DeviceBytes(int num_devices, int64_t largest_elems);
  static int64_t ChargedBytes(int num_devices, int64_t largest_elems);

  absl::Status Add(std::span<const LayerGradient> of_parts) override;
  LayerGradient Sum() override { return sum_; }

 private:
  // The way of a gradient from its GPU to the first one.
  struct Way {
    HostBuffer in_ram;
    std::unique_ptr<Event> has_left;  // its GPU, for RAM
    std::unique_ptr<Event> has_come;  // to the first GPU, from RAM
    std::unique_ptr<Stream> stream;   // of its GPU
  };

  GpuPartGradients() = default;
  absl::Status Bring(const LayerGradient& gradient, Way& way, float* to);
  absl::Status AddTo(int layer, float* sum, const float* first, const float* second,
                     int64_t num_elems);

  // In this order: streams end before what they use.
  std::vector<DeviceAllocation> buffers_;  // the sum, and one that comes to be added
  std::unique_ptr<Event> is_complete_, is_taken_;
  std::unique_ptr<Stream> sums_;  // of the first GPU
  std::vector<Way> ways_;         // of the others
  LayerGradient sum_;
};

}  // namespace forebay
