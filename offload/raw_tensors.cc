#include "forebay/offload/raw_tensors.h"

#include <cstring>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/offload/whole_tile.h"

namespace forebay {
namespace {

int64_t RawBytes(const TileMap& tiles) {
  int64_t bytes = 0;
  for (int tile = tiles.num_streamed_tiles(); tile < tiles.num_tiles(); ++tile) {
    bytes += tiles.WeightBytes(tiles.tiles()[tile]);
  }
  return bytes;
}

int64_t CopiedTileBytes(const TileMap& tiles) {
  return RawBytes(tiles) == 0 ? 0 : tiles.max_weight_bytes() + tiles.max_state_bytes();
}

}  // namespace

int64_t RawTensors::ChargedBytes(const TileMap& tiles) {
  return 2 * HostBuffer::ChargedBytes(RawBytes(tiles)) +
         HostBuffer::ChargedBytes(CopiedTileBytes(tiles));
}

absl::StatusOr<std::unique_ptr<RawTensors>> RawTensors::Create(TensorStore* store,
                                                               MemoryBudget* budget) {
  std::unique_ptr<RawTensors> raw(new RawTensors(store));
  const TileMap& tiles = store->tiles();
  const int64_t bytes = RawBytes(tiles);
  FOREBAY_ASSIGN_OR_RETURN(raw->values_, HostBuffer::Create(budget, "raw tensors", bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      raw->released_, TransferBuffer::Create(store, budget, "raw tensors", bytes, kIoAlignBytes));
  FOREBAY_ASSIGN_OR_RETURN(
      raw->copied_tile_,
      TransferBuffer::Create(store, budget, "raw tensors", CopiedTileBytes(tiles), kIoAlignBytes));
  FOREBAY_RETURN_IF_ERROR(raw->Read());
  return raw;
}

// The place of a raw tile: raw tiles lie in their order.
std::span<std::byte> RawTensors::TileIn(std::span<std::byte> values, int tile) const {
  const TileMap& tiles = store_->tiles();
  int64_t offset_bytes = 0;
  for (int before = tiles.num_streamed_tiles(); before < tile; ++before) {
    offset_bytes += tiles.WeightBytes(tiles.tiles()[before]);
  }
  return values.subspan(static_cast<size_t>(offset_bytes),
                        static_cast<size_t>(tiles.WeightBytes(tiles.tiles()[tile])));
}

absl::Status RawTensors::Read() {
  const TileMap& tiles = store_->tiles();
  for (int tile = tiles.num_streamed_tiles(); tile < tiles.num_tiles(); ++tile) {
    const std::span<std::byte> bytes = TileIn(released_.bytes(), tile);
    IoOp read;
    store_->StartReadWeights(tile, bytes, IoClass::kDemand, read);
    FOREBAY_RETURN_IF_ERROR(
        Annotate(store_->engine().Wait(read), "reading the raw tensors of the run"));
    FOREBAY_RETURN_IF_ERROR(store_->VerifyWeights(tile, bytes));
  }
  Abandon();
  return absl::OkStatus();
}

std::span<std::byte> RawTensors::Of(const TensorSpec& tensor) const {
  FOREBAY_CHECK(tensor.raw);
  // Tiles of a layer follow one another, and an element is a byte.
  const std::span<std::byte> layer =
      TileIn(values_.bytes(), store_->tiles().first_tile(tensor.layer));
  return {layer.data() + tensor.offset_elems, static_cast<size_t>(tensor.num_elems)};
}

bool RawTensors::HaveChanged() const {
  const std::span<const std::byte> released = released_.bytes();
  return !released.empty() && std::memcmp(released.data(), values_.data(), released.size()) != 0;
}

void RawTensors::Release() {
  if (!HaveChanged()) return;
  has_changed_ = true;
  std::memcpy(released_.bytes().data(), values_.data(), released_.bytes().size());
}

void RawTensors::Abandon() {
  if (!released_.bytes().empty()) {
    std::memcpy(values_.data(), released_.bytes().data(), released_.bytes().size());
  }
}

absl::Status RawTensors::Write() {
  const TileMap& tiles = store_->tiles();
  for (int tile = tiles.num_streamed_tiles(); tile < tiles.num_tiles(); ++tile) {
    FOREBAY_RETURN_IF_ERROR(
        Annotate(WriteWholeTile(*store_, tile, TileIn(released_.bytes(), tile), {}),
                 "writing the raw tensors of the run"));
  }
  has_changed_ = false;
  return absl::OkStatus();
}

absl::Status RawTensors::CopyForward() {
  const TileMap& tiles = store_->tiles();
  for (int tile = 0; tile < tiles.num_streamed_tiles(); ++tile) {
    if (store_->num_slots() == 1) {
      store_->KeepWeights(tile);
      store_->KeepState(tile);
      continue;
    }
    const Tile& spec = tiles.tiles()[tile];
    const auto weights = copied_tile_.bytes().first(static_cast<size_t>(tiles.WeightBytes(spec)));
    const auto state =
        copied_tile_.bytes().subspan(weights.size(), static_cast<size_t>(tiles.StateBytes(spec)));
    IoOp weight_op, state_op;
    store_->StartReadWeights(tile, weights, IoClass::kDemand, weight_op);
    store_->StartReadState(tile, state, IoClass::kDemand, state_op);
    absl::Status status = store_->engine().Wait(weight_op);
    status.Update(store_->engine().Wait(state_op));
    FOREBAY_RETURN_IF_ERROR(status);
    FOREBAY_RETURN_IF_ERROR(store_->VerifyWeights(tile, weights));
    FOREBAY_RETURN_IF_ERROR(store_->VerifyState(tile, state));
    FOREBAY_RETURN_IF_ERROR(WriteWholeTile(*store_, tile, weights, state));
  }
  return absl::OkStatus();
}

}  // namespace forebay
