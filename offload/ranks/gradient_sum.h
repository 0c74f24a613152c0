// Sums a layer's gradient over the ranks of a run, while the pass goes on with the layer before it:
// what is handed to the optimizer is the sum, or where each rank has a part of every layer its part
// of it, of the same bits.
//
//   bucket: a ring of slots        sum 0 | sum 1 | sum 2 | sum 3        on the communicator's
//   thread caller    copies into a slot   piece 4 -> slot 0, when sum 0 has been handed on
//
// The bucket has a fixed size, however large layers are (ZeRO-R's constant size buffers). A layer
// that fits is all in it when Start returns. Of a larger one the caller keeps the gradient until
// all but the bucket's last pieces have been summed.
#pragma once

#include <array>
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
#include "forebay/step/layer_gradient.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

// Of the gradients (fp32) that are being summed at one time: room for the layers of common models
// (of 268 million parameters), so that a pass waits for none of their sums.
inline constexpr int64_t kAutoBucketBytes = int64_t{1} << 30;

// Owned by one thread. Allocates nothing after its creation.
class GradientSum {
 public:
  struct Options {
    // 0: kAutoBucketBytes. At least a block of kLayerAlignElems for each rank in each slot.
    int64_t bucket_bytes = 0;
    DType wire = DType::kF32;  // of gradients and sums between ranks (CollectiveMemory::wire)
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
  // No more than the bucket, and no more than the largest layer needs.
  static int64_t ChargedBytes(const Inventory& inventory, int num_ranks, int64_t bucket_bytes);

  // Pieces are to be awaited.
  bool IsUnderWay() const { return num_awaited_ < num_pieces_; }
  // The memory that was given to Start is still to be read: for as long, pieces are to be awaited.
  bool NeedsGradient() const { return num_started_ < num_pieces_; }
  // Begins the sum of `gradient` (the layer's padded flat vector), as far as there is room, as soon
  // as it has come from its device. Every rank does so in the same order of layers. Tensors that
  // are missing are zero. EnvironmentError of the device. Requires: none is under way; the gradient
  // is a whole one in fp32, in RAM or on the device of the options.
  absl::Status Start(const LayerGradient& gradient);
  // Waits for the next piece of the layer's sum, or of the rank's part of it (elements are counted
  // in that), in fp32; they come from the first to the last. Gives its place to the next that has
  // none. Valid until the next call. Tensors that no rank has are missing. A piece that is empty
  // and not the first is only of other ranks. EnvironmentError of the ranks or of the device.
  // Requires: it is under way.
  absl::StatusOr<LayerGradient> Await();
  // Waits for what is under way, and forgets it.
  void Drop();

 private:
  // Enough that one is filled and one is handed on while others are summed.
  static constexpr int kNumSlots = 4;
  static int64_t SlotElems(const Inventory& inventory, int num_ranks, int64_t bucket_bytes);
  struct Slot {
    std::span<float> elems;
    std::unique_ptr<Event> has_landed;
    CollectiveTicket ticket;
  };

  GradientSum(const Inventory* inventory, const InventoryParts* parts, Communicator* ranks,
              const Options& options);
  absl::Status MakeSlots(MemoryBudget* budget, const Options& options);
  Slot& SlotOf(int64_t piece) { return slots_[static_cast<size_t>(piece % kNumSlots)]; }
  // Where in the layer the owners of its sum begin, and its end: the parts of ranks, or one of all.
  std::span<const int64_t> BoundsOf(int layer) const;
  // What the piece has of the owner's elements of the layer under way.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t num_elems() const { return end - begin; }
  };
  Range RangeOf(int owner, int64_t piece) const;
  int num_owners() const { return parts_ == nullptr ? 1 : ranks_->size(); }
  int own() const { return parts_ == nullptr ? 0 : ranks_->rank(); }
  absl::Status StartPieces();
  absl::Status StartPiece(int64_t piece);
  absl::Status Bring(std::span<const float> from, std::span<float> to);
  void StartCount();
  absl::Status AwaitCount(int layer);

  const Inventory* const inventory_;
  const InventoryParts* const parts_;
  Communicator* const ranks_;
  const DType wire_;
  // In this order: the stream ends before what it uses.
  HostBuffer buffer_;
  std::array<Slot, kNumSlots> slots_;
  std::unique_ptr<Stream> stream_;  // nullptr: no gradient comes from a device
  // By tensor of the layer: how many ranks have a gradient; empty: each has one of every tensor.
  std::vector<float> num_with_;
  CollectiveTicket count_ticket_;
  std::vector<int> missing_;            // on all ranks, of the layer that is summed
  std::vector<int64_t> bounds_of_all_;  // [2]: 0 and the size of the layer
  std::vector<int64_t> offsets_;        // of owners in the slot that is filled

  // The layer that is summed, in num_pieces_ pieces.
  LayerGradient gradient_;
  int64_t num_pieces_ = 0;
  int64_t num_started_ = 0;
  int64_t num_awaited_ = 0;
};

}  // namespace forebay
