#include "forebay/optimizer/tile_run.h"

#include "forebay/base/check.h"

namespace forebay {

TileRun RunOf(const TileMap& tiles, const Tile& tile, std::span<std::byte> weights,
              std::span<std::byte> state) {
  FOREBAY_CHECK(static_cast<int64_t>(weights.size()) == tiles.WeightBytes(tile));
  FOREBAY_CHECK(static_cast<int64_t>(state.size()) == tiles.StateBytes(tile));
  const TilePlanes& planes = tiles.PlanesOf(tile);
  const auto find = [&](TilePlane kind) -> void* {
    const int plane = planes.Find(kind);
    return plane < 0 ? nullptr : state.data() + planes.OffsetBytes(plane, tile.num_elems);
  };
  TileRun run;
  run.num_elems = tile.num_elems;
  run.first_elem = tile.first_elem;
  run.layer = tile.layer;
  run.weights = WeightFormatOf(tiles.layout());
  run.weight = weights.data();
  run.remainder = static_cast<int16_t*>(find(TilePlane::kRemainder));
  run.master = static_cast<float*>(find(TilePlane::kMaster));
  run.moments = planes.moments();
  run.m = find(TilePlane::kM);
  run.v = find(TilePlane::kV);
  run.m_scale = static_cast<uint16_t*>(find(TilePlane::kMScale));
  run.v_scale = static_cast<uint16_t*>(find(TilePlane::kVScale));
  return run;
}

}  // namespace forebay
