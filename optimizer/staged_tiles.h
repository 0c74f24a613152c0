// Brings the state and the spilled gradient of tiles into a ring of staging buffers, ahead of their
// update.
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
#include "forebay/swap/placement.h"
#include "forebay/swap/tensor_store.h"

namespace forebay {

struct StagingBuffer {
  std::span<std::byte> state;     // of the largest tile
  std::span<std::byte> gradient;  // of the largest tile; empty when no gradient is spilled
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
  bool Needs(int tile) const { return StateIsRead(tile) || GradientIsRead(tile); }
  bool StateIsRead(int tile) const { return placement_.state[tile] == Tier::kNvme; }
  bool GradientIsRead(int tile) const {
    return gradients_->IsSpilled(store_->tiles().tiles()[tile].layer);
  }

  // The updates of a new step, of every layer, are to come: starts reading the first tiles. Errors
  // surface in Await.
  void Begin();
  // Waits for `tile`, which is cheap when tiles are asked for in the order of the store, and
  // correct in any order. The buffers are the caller's until Done. StorageError names layer and
  // tile.
  absl::StatusOr<StagingBuffer> Await(int tile);
  // The update of the tile awaited last has ended, and the write-back of its state was started:
  // reads further ahead.
  void Done();
  // The layer's update has ended; nothing of it is read ahead until the next Begin.
  void EndLayer(int layer) { to_come_[layer] = false; }

 private:
  struct Slot {
    StagingBuffer buffer;
    int tile = -1;  // whose write-back may still borrow the buffer
    IoOp state_read;
    IoOp gradient_read;
  };
  Slot& SlotAt(int64_t number) { return slots_[number % static_cast<int64_t>(slots_.size())]; }
  // The first tile from `tile` on that must be read and whose layer is still to come, or -1.
  int NextToCome(int tile) const;
  absl::Status ReadAhead();
  void StartReads(Slot& slot, int tile);
  absl::Status AwaitReads(Slot& slot);
  // Drops what was read ahead and goes on from `tile`.
  absl::Status MoveTo(int tile);

  const Placement& placement_;
  TensorStore* const store_;
  const HeldGradients* const gradients_;
  TileWrites* const writes_;
  std::vector<Slot> slots_;
  int64_t num_started_ = 0;       // tiles whose reads were started ...
  int64_t num_taken_ = 0;         // ... and that were awaited, since the beginning
  int next_tile_ = -1;            // to be read next; -1: none
  std::vector<uint8_t> to_come_;  // by layer: whether its update is still to come in this step
};

}  // namespace forebay
