#include "forebay/optimizer/staged_tiles.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

StagedTiles::StagedTiles(std::vector<StagingBuffer> buffers, const Placement& placement,
                         TensorStore* store, const HeldGradients* gradients, TileWrites* writes)
    : placement_(placement),
      store_(store),
      gradients_(gradients),
      writes_(writes),
      slots_(buffers.size()),
      to_come_(store->inventory().num_layers()) {
  FOREBAY_CHECK(slots_.size() >= 2);
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].buffer = buffers[i];
}

StagedTiles::~StagedTiles() {
  // Nobody waits for what is read ahead here; only the buffers matter.
  for (Slot& slot : slots_) AwaitReads(slot).IgnoreError();
}

int StagedTiles::NextToCome(int tile) const {
  const TileMap& tiles = store_->tiles();
  while (tile < tiles.num_tiles()) {
    const int layer = tiles.tiles()[tile].layer;
    if (!to_come_[layer]) {
      tile = tiles.first_tile(layer + 1);
    } else if (Needs(tile)) {
      return tile;
    } else {
      ++tile;
    }
  }
  return -1;
}

void StagedTiles::Begin() {
  FOREBAY_CHECK(num_taken_ == num_started_);
  std::fill(to_come_.begin(), to_come_.end(), true);
  next_tile_ = NextToCome(0);
  Done();
}

void StagedTiles::Done() {
  // A failed write-back is kept by TileWrites and found again by Await.
  ReadAhead().IgnoreError();
}

absl::Status StagedTiles::ReadAhead() {
  while (next_tile_ >= 0 && num_started_ - num_taken_ < static_cast<int64_t>(slots_.size())) {
    Slot& slot = SlotAt(num_started_);
    const bool borrowed = slot.tile >= 0 && StateIsRead(slot.tile);
    if (borrowed && writes_->StateIsPending(slot.tile) && num_started_ > num_taken_) break;
    if (borrowed) FOREBAY_RETURN_IF_ERROR(writes_->AwaitState(slot.tile));
    // The tile's own last write-back: complete long ago unless the whole store fits the ring.
    FOREBAY_RETURN_IF_ERROR(writes_->AwaitState(next_tile_));
    StartReads(slot, next_tile_);
    ++num_started_;
    next_tile_ = NextToCome(next_tile_ + 1);
  }
  return absl::OkStatus();
}

void StagedTiles::StartReads(Slot& slot, int tile) {
  slot.tile = tile;
  if (StateIsRead(tile)) {
    const TileMap& tiles = store_->tiles();
    store_->StartReadState(tile, slot.buffer.state.first(tiles.StateBytes(tiles.tiles()[tile])),
                           IoClass::kPrefetch, slot.state_read);
  }
  if (GradientIsRead(tile)) {
    gradients_->StartReadTile(tile, slot.buffer.gradient, slot.gradient_read);
  }
}

absl::Status StagedTiles::AwaitReads(Slot& slot) {
  absl::Status status = store_->engine().Wait(slot.state_read);
  status.Update(store_->engine().Wait(slot.gradient_read));
  if (status.ok()) return status;
  const int layer = store_->tiles().tiles()[slot.tile].layer;
  return Annotate(status, fmt::format("optimizer: reading the state of tile {} (layer '{}') failed",
                                      slot.tile, store_->inventory().layers()[layer].name));
}

absl::Status StagedTiles::MoveTo(int tile) {
  for (; num_taken_ < num_started_; ++num_taken_) {
    Slot& slot = SlotAt(num_taken_);
    FOREBAY_RETURN_IF_ERROR(AwaitReads(slot));
    slot.tile = -1;
  }
  next_tile_ = tile;
  return absl::OkStatus();
}

absl::StatusOr<StagingBuffer> StagedTiles::Await(int tile) {
  const bool is_next = num_taken_ < num_started_ && SlotAt(num_taken_).tile == tile;
  if (!is_next) FOREBAY_RETURN_IF_ERROR(MoveTo(tile));
  FOREBAY_RETURN_IF_ERROR(ReadAhead());
  Slot& slot = SlotAt(num_taken_);
  FOREBAY_RETURN_IF_ERROR(AwaitReads(slot));
  ++num_taken_;
  return slot.buffer;
}

}  // namespace forebay
