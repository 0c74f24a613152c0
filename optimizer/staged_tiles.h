// Brings the state and the spilled gradient of tiles into a ring of staging buffers, ahead of their
// update; of speculative layers (swap/tiles/placement.h), and of delayed updates, the weights too,
// as they are updated outside of the swapper's window.
//
// The ring cannot deadlock: a buffer waits for nothing but its own write-back, which was started
// before the ring moves on and needs no other buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/optimizer/tile_writes.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

struct StagingBuffer {
  std::span<std::byte> state;     // of the largest tile
  std::span<std::byte> gradient;  // of the largest tile; empty when all gradients stay in RAM
  // As large as the largest tile's; empty when no layer is updated outside of the window.
  std::span<std::byte> weights;
  // Not for reading: as `gradient`, for those that are spilled beside delayed updates, which read
  // others back meanwhile.
  std::span<std::byte> spill;
};

// Owned by one thread at a time. Everything pointed to must outlive it.
class StagedTiles {
 public:
  StagedTiles(std::vector<StagingBuffer> buffers, const Placement& placement, TensorStore* store,
              const HeldGradients* gradients, TileWrites* writes);
  ~StagedTiles();  // waits for what is under way
  StagedTiles(const StagedTiles&) = delete;
  StagedTiles& operator=(const StagedTiles&) = delete;

  // Whether any part of the tile must be read.
  bool Needs(int tile) const {
    return StateIsRead(tile) || GradientIsRead(tile) || WeightsAreRead(tile);
  }
  bool StateIsRead(int tile) const { return placement_.state[tile] == Tier::kNvme; }
  bool GradientIsRead(int tile) const { return placement_.IsSpilled(LayerOf(tile)); }
  bool WeightsAreRead(int tile) const {
    const int layer = LayerOf(tile);
    return placement_.weights[layer] == Tier::kNvme &&
           (all_weights_are_read_ || !placement_.WaitsForNorm(layer));
  }

  // Before Begin of the same tiles, as often as there may be buffers to read into: starts reading
  // the first of them ahead of it, as far as that needs no gradient, behind all that Begin was told
  // of before. Nothing of them changes until then. `waits`: for what is still written from the
  // buffers; else those are left for later.
  void ReadEarly(std::span<const int> tiles, bool waits = false);
  // The same for a thread that calls it again and again: little at a time, so that it takes little
  // of the disk from others. Whether there is more to read by and by.
  bool ReadEarlyInTurns(std::span<const int> tiles);
  // Goes on where a buffer was still being written from. Whether that, and nothing else, keeps it
  // from reading more: then it is worth calling again soon. Waits for nothing.
  bool ReadFurther();
  // The updates of these tiles are to come, in this order as far as is known: starts reading the
  // first. Errors surface in Await. `tiles` is borrowed until the next Begin. `with_weights`: of
  // every tile.
  void Begin(std::span<const int> tiles, bool with_weights = false);
  // Waits for `tile`, one of Begin's, which is cheap when they are asked for in that order, and
  // correct in any. The buffers are the caller's until Done. StorageError names layer and
  // tile.
  absl::StatusOr<StagingBuffer> Await(int tile);
  // The update of the tile awaited last has ended, and the write-back of what was read of it was
  // started: reads further ahead.
  void Done();
  // The layer's update has ended; nothing of it is read ahead until the next Begin.
  void EndLayer(int layer) { to_come_[layer] = false; }
  // Drops what was read ahead; nothing more is to come until the next Begin.
  void Cancel();

 private:
  struct Slot {
    StagingBuffer buffer;
    int tile = -1;  // whose write-back may still borrow the buffer
    IoOp state_read;
    IoOp gradient_read;
    IoOp weights_read;
  };
  Slot& SlotAt(int64_t number) { return slots_[number % static_cast<int64_t>(slots_.size())]; }
  int LayerOf(int tile) const { return store_->tiles().tiles()[tile].layer; }
  // The first position from `position` on whose tile must be read and is of a layer that is still
  // to come; order_.size(): there is none.
  size_t NextToCome(size_t position) const;
  void TakeOrder(std::span<const int> tiles, bool with_weights);
  // Whether reading `tiles` early can begin or go on.
  bool TakeEarlyOrder(std::span<const int> tiles);
  bool HasNext() const {
    return next_ < order_.size() && num_started_ - num_taken_ < std::ssize(slots_);
  }
  // Whether reading the next tile would wait for a write-back. Requires: HasNext.
  bool NextMustWait();
  int NumReadsPending();
  absl::Status ReadAhead();
  absl::Status StartNextReads();
  bool WritesArePending(int tile) const;
  absl::Status AwaitWrites(int tile);
  void StartReads(Slot& slot, int tile);
  absl::Status AwaitReads(Slot& slot);
  // Drops what was read ahead and goes on from `tile`.
  absl::Status MoveTo(int tile);

  const Placement& placement_;
  TensorStore* const store_;
  const HeldGradients* const gradients_;
  TileWrites* const writes_;
  std::vector<Slot> slots_;
  bool all_weights_are_read_ = false;
  bool is_early_ = false;         // since ReadEarly, until Begin
  absl::Status early_failure_;    // of reads that no update used, for the next Await
  int64_t num_started_ = 0;       // tiles whose reads were started ...
  int64_t num_taken_ = 0;         // ... and that were awaited, since the beginning
  std::span<const int> order_;    // of tiles
  size_t next_ = 0;               // position of what is to be read next; order_.size(): nothing is
  std::vector<uint8_t> to_come_;  // by layer: whether its update is still to come in this step
};

}  // namespace forebay
