#include "forebay/swap/tile_map.h"

#include <algorithm>

#include "forebay/base/check.h"

namespace forebay {

TileMap::TileMap(const Inventory& inventory, Layout layout, int64_t tile_elems,
                 const StripeWeights& stripe_weights)
    : layout_(layout),
      tile_elems_(tile_elems),
      stripe_weights_(stripe_weights),
      weight_area_bytes_(stripe_weights.size()),
      state_area_bytes_(stripe_weights.size()) {
  FOREBAY_CHECK(tile_elems > 0 && tile_elems % kLayerAlignElems == 0);
  StripeDealer dealer(stripe_weights);
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    first_tile_.push_back(num_tiles());
    const int64_t layer_elems = inventory.layers()[layer].num_elems;
    layer_elems_.push_back(layer_elems);
    for (int64_t first = 0; first < layer_elems; first += tile_elems) {
      Tile tile;
      tile.layer = layer;
      tile.first_elem = first;
      tile.num_elems = std::min(tile_elems, layer_elems - first);
      tile.stripe = dealer.Next(tile.num_elems);
      tile.weight_offset_bytes = weight_area_bytes_[tile.stripe];
      tile.state_offset_bytes = state_area_bytes_[tile.stripe];
      weight_area_bytes_[tile.stripe] += WeightBytes(tile);
      state_area_bytes_[tile.stripe] += StateBytes(tile);
      max_weight_bytes_ = std::max(max_weight_bytes_, WeightBytes(tile));
      max_state_bytes_ = std::max(max_state_bytes_, StateBytes(tile));
      tiles_.push_back(tile);
    }
  }
  first_tile_.push_back(num_tiles());
}

int64_t PlaneOffsetBytes(Layout layout, int plane, int64_t num_elems) {
  int64_t offset_bytes = 0;
  for (int before = 1; before < plane; ++before) {
    offset_bytes += num_elems * PlaneElemBytes(layout, before);
  }
  return offset_bytes;
}

StatePlanes PlanesOf(Layout layout, int64_t num_elems) {
  const int m = NumPlanes(layout) - 2;
  return {0, PlaneOffsetBytes(layout, m, num_elems), PlaneOffsetBytes(layout, m + 1, num_elems)};
}

}  // namespace forebay
