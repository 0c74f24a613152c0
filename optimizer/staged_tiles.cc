#include "forebay/optimizer/staged_tiles.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// Enough to keep a disk busy that nobody else asks for anything.
constexpr int kMostReadsInTurns = 3;

}  // namespace

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

size_t StagedTiles::NextToCome(size_t position) const {
  while (position < order_.size() &&
         (!to_come_[LayerOf(order_[position])] || !Needs(order_[position]))) {
    ++position;
  }
  return position;
}

void StagedTiles::TakeOrder(std::span<const int> tiles, bool with_weights) {
  all_weights_are_read_ = with_weights;
  std::fill(to_come_.begin(), to_come_.end(), true);
  order_ = tiles;
  next_ = NextToCome(0);
}

bool StagedTiles::TakeEarlyOrder(std::span<const int> tiles) {
  const bool others_come_first = !is_early_ && next_ < order_.size();
  if (tiles.empty() || others_come_first) return false;
  if (!std::exchange(is_early_, true)) TakeOrder(tiles, /*with_weights=*/false);
  return true;
}

bool StagedTiles::NextMustWait() {
  const int before = SlotAt(num_started_).tile;
  const int tile = order_[next_];
  // The tile's own state counts also where it is not read.
  return writes_->StateIsPending(tile) || WritesArePending(tile) ||
         (before >= 0 && WritesArePending(before));
}

void StagedTiles::ReadEarly(std::span<const int> tiles, bool waits) {
  if (!TakeEarlyOrder(tiles)) return;
  while (HasNext() && !GradientIsRead(order_[next_])) {
    // A failed write-back is kept by TileWrites and found again by Await.
    if ((!waits && NextMustWait()) || !StartNextReads().ok()) return;
  }
}

bool StagedTiles::ReadEarlyInTurns(std::span<const int> tiles) {
  if (!TakeEarlyOrder(tiles)) return false;
  int num_pending = NumReadsPending();
  while (HasNext() && !GradientIsRead(order_[next_])) {
    if (num_pending >= kMostReadsInTurns || NextMustWait()) return true;
    if (!StartNextReads().ok()) return false;
    ++num_pending;
  }
  return false;
}

int StagedTiles::NumReadsPending() {
  int num_pending = 0;
  for (int64_t number = num_taken_; number < num_started_; ++number) {
    const Slot& slot = SlotAt(number);
    if (slot.state_read.pending() || slot.weights_read.pending()) ++num_pending;
  }
  return num_pending;
}

bool StagedTiles::ReadFurther() {
  while (HasNext() && !(is_early_ && GradientIsRead(order_[next_]))) {
    if (NextMustWait()) return true;
    if (!StartNextReads().ok()) return false;
  }
  return false;
}

void StagedTiles::Begin(std::span<const int> tiles, bool with_weights) {
  const bool goes_on =
      is_early_ && tiles.data() == order_.data() && tiles.size() == order_.size() && !with_weights;
  if (!goes_on) {
    Cancel();
    TakeOrder(tiles, with_weights);
  }
  is_early_ = false;
  Done();
}

void StagedTiles::Cancel() {
  for (; num_taken_ < num_started_; ++num_taken_) {
    Slot& slot = SlotAt(num_taken_);
    const absl::Status status = AwaitReads(slot);
    if (is_early_) early_failure_.Update(status);
    slot.tile = -1;
  }
  order_ = {};
  next_ = 0;
  is_early_ = false;
}

void StagedTiles::Done() {
  // A failed write-back is kept by TileWrites and found again by Await.
  ReadAhead().IgnoreError();
}

bool StagedTiles::WritesArePending(int tile) const {
  return (StateIsRead(tile) && writes_->StateIsPending(tile)) ||
         (WeightsAreRead(tile) && writes_->WeightsArePending(tile));
}

// Of what is read into a slot, and so written from there.
absl::Status StagedTiles::AwaitWrites(int tile) {
  absl::Status status = StateIsRead(tile) ? writes_->AwaitState(tile) : absl::OkStatus();
  if (WeightsAreRead(tile)) status.Update(writes_->AwaitWeights(tile));
  return status;
}

absl::Status StagedTiles::ReadAhead() {
  if (is_early_) return absl::OkStatus();  // gradients of that order are not there yet
  while (HasNext()) {
    const Slot& slot = SlotAt(num_started_);
    if (slot.tile >= 0 && WritesArePending(slot.tile) && num_started_ > num_taken_) break;
    FOREBAY_RETURN_IF_ERROR(StartNextReads());
  }
  return absl::OkStatus();
}

// Requires: there is a next tile, and a slot that is not taken.
absl::Status StagedTiles::StartNextReads() {
  Slot& slot = SlotAt(num_started_);
  if (slot.tile >= 0) FOREBAY_RETURN_IF_ERROR(AwaitWrites(slot.tile));
  // The tile's own last write-back: complete long ago unless the whole store fits the ring.
  const int tile = order_[next_];
  FOREBAY_RETURN_IF_ERROR(writes_->AwaitState(tile));
  if (WeightsAreRead(tile)) FOREBAY_RETURN_IF_ERROR(writes_->AwaitWeights(tile));
  StartReads(slot, tile);
  ++num_started_;
  next_ = NextToCome(next_ + 1);
  return absl::OkStatus();
}

void StagedTiles::StartReads(Slot& slot, int tile) {
  slot.tile = tile;
  const TileMap& tiles = store_->tiles();
  const Tile& spec = tiles.tiles()[tile];
  if (StateIsRead(tile)) {
    store_->StartReadState(tile, slot.buffer.state.first(tiles.StateBytes(spec)),
                           IoClass::kUpdateRead, slot.state_read);
  }
  if (GradientIsRead(tile)) {
    gradients_->StartReadTile(tile, slot.buffer.gradient, slot.gradient_read);
  }
  if (WeightsAreRead(tile)) {
    store_->StartReadWeights(tile, slot.buffer.weights.first(tiles.WeightBytes(spec)),
                             IoClass::kUpdateRead, slot.weights_read);
  }
}

absl::Status StagedTiles::AwaitReads(Slot& slot) {
  absl::Status status = store_->engine().Wait(slot.state_read);
  status.Update(store_->engine().Wait(slot.gradient_read));
  status.Update(store_->engine().Wait(slot.weights_read));
  if (status.ok()) return status;
  return Annotate(
      status, fmt::format("optimizer: reading the state of tile {} (layer '{}') failed", slot.tile,
                          store_->inventory().layers()[LayerOf(slot.tile)].name));
}

absl::Status StagedTiles::MoveTo(int tile) {
  for (; num_taken_ < num_started_; ++num_taken_) {
    Slot& slot = SlotAt(num_taken_);
    FOREBAY_RETURN_IF_ERROR(AwaitReads(slot));
    slot.tile = -1;
  }
  next_ = static_cast<size_t>(std::ranges::find(order_, tile) - order_.begin());
  FOREBAY_CHECK(next_ < order_.size());
  return absl::OkStatus();
}

absl::StatusOr<StagingBuffer> StagedTiles::Await(int tile) {
  FOREBAY_RETURN_IF_ERROR(std::exchange(early_failure_, absl::OkStatus()));
  const bool is_next = num_taken_ < num_started_ && SlotAt(num_taken_).tile == tile;
  if (!is_next) FOREBAY_RETURN_IF_ERROR(MoveTo(tile));
  FOREBAY_RETURN_IF_ERROR(ReadAhead());
  Slot& slot = SlotAt(num_taken_);
  FOREBAY_RETURN_IF_ERROR(AwaitReads(slot));
  ++num_taken_;
  return slot.buffer;
}

}  // namespace forebay
