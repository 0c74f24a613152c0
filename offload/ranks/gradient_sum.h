// Sums a layer's gradient over the ranks of a run, while the pass goes on with the layer before it:
// what is handed to the optimizer is the sum, or where each rank has a part of every layer its part
// of it, of the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/collective/communicator.h"
#include "forebay/device/device.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/step/layer_compute.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

// Owned by one thread. Allocates nothing after its creation.
class GradientSum {
 public:
  // Its spans are valid until the next Start.
  struct Sum {
    int layer = -1;
    std::span<const float> elems;           // of the layer, or of the rank's part of it
    std::span<const int> without_gradient;  // its tensors of which no rank has one
  };

  struct Options {
    // A rank may have no gradient of a tensor, and says of each whether it has.
    bool tensors_may_lack = false;
    Device* device = nullptr;  // on which gradients may lie; nullptr: all are in RAM
  };

  // For the layers of `inventory`, whole ones. `parts`: how ranks divide them; nullptr: each rank
  // takes all. Charges ChargedBytes to `budget`. OutOfMemoryError, EnvironmentError of the device.
  // All pointed to must outlive it.
  static absl::StatusOr<std::unique_ptr<GradientSum>> Create(const Inventory* inventory,
                                                             const InventoryParts* parts,
                                                             Communicator* ranks,
                                                             MemoryBudget* budget,
                                                             const Options& options);
  // Waits for what is under way.
  ~GradientSum();
  static int64_t ChargedBytes(const Inventory& inventory);

  bool IsUnderWay() const { return layer_ >= 0; }
  // Copies `gradient` (the layer's padded flat vector) and begins its sum, as soon as it has come
  // from its device. Every rank does so in the same order of layers. `without_gradient`: its
  // tensors that this rank has none of, which are zero. EnvironmentError of the device. Requires:
  // none is under way; the gradient is in RAM, or on the device of the options.
  absl::Status Start(int layer, const LayerGradient& gradient,
                     std::span<const int> without_gradient = {});
  // Waits for it. EnvironmentError of the ranks. Requires: one is under way.
  absl::StatusOr<Sum> Await();
  // Waits for what is under way, and forgets it.
  void Drop();

 private:
  GradientSum(const Inventory* inventory, const InventoryParts* parts, Communicator* ranks,
              const Options& options);
  absl::Status Bring(const LayerGradient& gradient, std::span<float> to);
  void StartCount(int layer, std::span<const int> without_gradient);
  absl::Status AwaitCount(int layer);

  const Inventory* const inventory_;
  const InventoryParts* const parts_;
  Communicator* const ranks_;
  // In this order: the stream ends before what it uses.
  HostBuffer buffer_;
  std::unique_ptr<Event> has_landed_;
  std::unique_ptr<Stream> stream_;  // nullptr: no gradient comes from a device
  CollectiveTicket ticket_;
  // By tensor of the layer: how many ranks have a gradient; empty: each has one of every tensor.
  std::vector<float> num_with_;
  CollectiveTicket count_ticket_;
  std::vector<int> without_gradient_;  // of the last sum
  int layer_ = -1;                     // whose sum is under way; -1: none
  int64_t num_elems_ = 0;
};

}  // namespace forebay
