#include "forebay/swap/window/layer_pieces.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/activity.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

LayerPieces::LayerPieces(TensorStore* store, int64_t piece_elems, std::span<std::byte> memory)
    : store_(store), memory_(memory), piece_elems_(piece_elems) {
  // In a lossy layout small tensors have tiles of their own.
  const int64_t most_tiles = piece_elems / store->tiles().tile_elems() + 2;
  for (Slot& slot : slots_) slot.ops = std::make_unique<IoOp[]>(static_cast<size_t>(most_tiles));
}

std::span<std::byte> LayerPieces::MemoryOf(int piece) const {
  const TileMap& tiles = store_->tiles();
  const int64_t first_elem = piece * piece_elems_;
  const int64_t elems = std::min(piece_elems_, tiles.layer_elems(layer_) - first_elem);
  const int64_t elem_bytes = WeightBytesPerElem(tiles.layout());
  const int64_t begin = HeldPieces::SlotOf(piece) * piece_elems_ * elem_bytes;
  return memory_.subspan(static_cast<size_t>(begin), static_cast<size_t>(elems * elem_bytes));
}

void LayerPieces::Start(int layer, IoClass io_class) {
  Drop();
  layer_ = layer;
  cut_ = PieceCut::Of(store_->tiles(), layer, piece_elems_);
  for (int piece = 0; piece < std::min(kPiecesOfBuffer, cut_.num_pieces); ++piece) {
    StartRead(piece, io_class);
  }
}

void LayerPieces::DropSlot(int slot) {
  Slot& dropped = slots_[static_cast<size_t>(slot)];
  const int num_reads = std::exchange(dropped.num_reads, 0);
  for (int i = 0; i < num_reads; ++i) store_->engine().Cancel(dropped.ops[i]);
  for (int i = 0; i < num_reads; ++i) store_->engine().Wait(dropped.ops[i]).IgnoreError();
  held_.Drop(slot);
}

void LayerPieces::Drop() {
  for (int slot = 0; slot < kPiecesOfBuffer; ++slot) DropSlot(slot);
}

void LayerPieces::StartRead(int piece, IoClass io_class) {
  if (held_.Holds(piece)) return;
  DropSlot(HeldPieces::SlotOf(piece));
  held_.Take(piece);
  Slot& slot = slots_[static_cast<size_t>(HeldPieces::SlotOf(piece))];
  const TileMap& tiles = store_->tiles();
  const std::span<std::byte> memory = MemoryOf(piece);
  const int first_tile = FirstTile(piece);
  slot.num_reads = FirstTile(piece + 1) - first_tile;
  for (int i = 0; i < slot.num_reads; ++i) {
    const Tile& tile = tiles.tiles()[first_tile + i];
    const int64_t elem = tile.first_elem - piece * piece_elems_;
    const auto offset = static_cast<size_t>(elem * WeightBytesPerElem(tiles.layout()));
    store_->StartReadWeights(first_tile + i,
                             memory.subspan(offset, static_cast<size_t>(tiles.WeightBytes(tile))),
                             io_class, slot.ops[i]);
  }
}

absl::Status LayerPieces::FinishRead(int piece) {
  Slot& slot = slots_[static_cast<size_t>(HeldPieces::SlotOf(piece))];
  const ActivityScope scope(Activity::kReadWeights);
  absl::Status status;
  const int num_reads = std::exchange(slot.num_reads, 0);
  for (int i = 0; i < num_reads; ++i) status.Update(store_->engine().Wait(slot.ops[i]));
  for (int i = 0; status.ok() && i < num_reads; ++i) {
    status = store_->VerifyWeights(FirstTile(piece) + i, slot.ops[i].buffer);
  }
  if (status.ok()) return status;
  held_.Drop(HeldPieces::SlotOf(piece));
  return Annotate(status, fmt::format("reading the weights of '{}'",
                                      store_->inventory().layers()[layer_].name));
}

absl::StatusOr<LayerWeights> LayerPieces::Get(int piece) {
  FOREBAY_CHECK(piece >= 0 && piece < num_pieces());
  FOREBAY_RETURN_IF_ERROR(failure_);
  const Stopwatch watch;
  StartRead(piece, IoClass::kDemand);
  failure_ = FinishRead(piece);
  FOREBAY_RETURN_IF_ERROR(failure_);
  waited_s_ += watch.Seconds();
  if (piece + 1 < num_pieces()) StartRead(piece + 1, IoClass::kPrefetch);
  return LayerWeights{.dtype = WeightDType(store_->tiles().layout()),
                      .data = MemoryOf(piece),
                      .first_elem = piece * piece_elems_};
}

absl::Status LayerPieces::UpdatePiece(int piece, TileUpdater* updater) {
  FOREBAY_RETURN_IF_ERROR(failure_);
  StartRead(piece, IoClass::kDemand);
  FOREBAY_RETURN_IF_ERROR(FinishRead(piece));
  if (piece + 1 < num_pieces()) {
    // The next one comes where the one before is being written from.
    if (piece > 0) {
      const ActivityScope scope(Activity::kWrite);
      FOREBAY_RETURN_IF_ERROR(
          updater->AwaitWriteBackOfTiles(FirstTile(piece - 1), FirstTile(piece)));
    }
    StartRead(piece + 1, IoClass::kPrefetch);
  }
  return updater->UpdateTiles(layer_, FirstTile(piece), FirstTile(piece + 1), MemoryOf(piece));
}

absl::Status LayerPieces::Update(TileUpdater* updater) {
  absl::Status status;
  for (int piece = 0; status.ok() && piece < num_pieces(); ++piece) {
    status = UpdatePiece(piece, updater);
  }
  {
    const ActivityScope scope(Activity::kWrite);
    status.Update(updater->AwaitWriteBackOfTiles(FirstTile(0), FirstTile(num_pieces())));
  }
  for (int piece = 0; status.ok() && piece < std::min(kPiecesOfBuffer, num_pieces()); ++piece) {
    StartRead(piece, IoClass::kPrefetch);
  }
  return status;
}

}  // namespace forebay
