#include "forebay/offload/divided_state.h"

#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"
#include "forebay/swap/tiles/tile_values.h"

namespace forebay {

// Parts are cut where planes are: between whole blocks of scales.
absl::Status DividedState::ReadPlane(const TensorSpec& tensor, TilePlane kind, int64_t first_elem,
                                     int64_t num_elems, std::span<std::byte> out) const {
  const auto index = static_cast<int>(&tensor - inventory().tensors().data());
  for (const ElemPiece& piece : parts_->PiecesOf(index, first_elem, num_elems)) {
    TensorStore& of_part = store(piece.part);
    const TensorSpec& own = of_part.inventory().tensors()[index];
    const TileMap& tiles = of_part.tiles();
    const TilePlanes& planes =
        tiles.PlanesOf(tiles.tiles()[tiles.TileAt(own.layer, own.offset_elems)]);
    const int plane = planes.Find(kind);
    const int64_t stored =
        planes.IsScale(plane) ? RoundUp(piece.num_elems, kMomentBlockElems) : piece.num_elems;
    const std::span<std::byte> to =
        out.subspan(planes.Bytes(plane, piece.first - first_elem), planes.Bytes(plane, stored));
    FOREBAY_RETURN_IF_ERROR(
        of_part.ReadTilePlane(own, kind, piece.first_in_part, piece.num_elems, to));
  }
  return absl::OkStatus();
}

namespace {

// Fills the part of a tile that is a tensor's, in all its planes.
absl::Status CopyTensor(const DividedState& state, const TensorSpec& of_state, int64_t first_of_own,
                        const TilePart& part, const TileMap& tiles, const Tile& tile,
                        std::span<std::byte> weights, std::span<std::byte> planes_of_state) {
  const TilePlanes& planes = tiles.PlanesOf(tile);
  for (int plane = 0; plane < planes.size(); ++plane) {
    const std::span<std::byte> half = plane == 0 ? weights : planes_of_state;
    const int64_t stored =
        planes.IsScale(plane) ? RoundUp(part.num_elems, kMomentBlockElems) : part.num_elems;
    const auto to = half.subspan(
        planes.OffsetBytes(plane, tile.num_elems) + planes.Bytes(plane, part.first_in_tile),
        planes.Bytes(plane, stored));
    FOREBAY_RETURN_IF_ERROR(state.ReadPlane(
        of_state, planes.kind(plane), first_of_own + part.first_in_tensor, part.num_elems, to));
  }
  return absl::OkStatus();
}

}  // namespace

TileFiller CopyOf(const DividedState* state, const Inventory* own, const InventoryParts* parts,
                  int part, const TileMap* tiles) {
  return [=](int index, std::span<std::byte> weights, std::span<std::byte> planes) -> absl::Status {
    const Tile& tile = tiles->tiles()[index];
    const LayerSpec& layer = own->layers()[tile.layer];
    for (int i = layer.first_tensor; i < layer.first_tensor + layer.num_tensors; ++i) {
      const TensorSpec& tensor = own->tensors()[i];
      const TileRange range = TilesOf(*tiles, tensor);
      if (index < range.first || index >= range.end) continue;
      const int64_t first = parts == nullptr ? 0 : parts->FirstElem(i, part);
      FOREBAY_RETURN_IF_ERROR(CopyTensor(*state, state->inventory().tensors()[i], first,
                                         PartInTile(*tiles, tensor, index), *tiles, tile, weights,
                                         planes));
    }
    return absl::OkStatus();
  };
}

}  // namespace forebay
