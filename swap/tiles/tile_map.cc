#include "forebay/swap/tiles/tile_map.h"

#include <algorithm>

#include "forebay/base/check.h"

namespace forebay {

TileMap::TileMap(const Inventory& inventory, Layout layout, int64_t tile_elems,
                 const StripeWeights& stripe_weights, MomentSet moment_set)
    : layout_(layout),
      moment_set_(moment_set),
      planes_(layout, moment_set, /*small=*/false),
      planes_of_small_(layout, moment_set, /*small=*/true),
      tile_elems_(tile_elems),
      num_streamed_layers_(inventory.num_streamed_layers()),
      stripe_weights_(stripe_weights),
      weight_area_bytes_(stripe_weights.size()),
      state_area_bytes_(stripe_weights.size()) {
  FOREBAY_CHECK(tile_elems > 0 && tile_elems % kLayerAlignElems == 0);
  StripeDealer dealer(stripe_weights);
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    const LayerSpec& spec = inventory.layers()[layer];
    layer_elems_.push_back(spec.num_elems);
    first_tile_.push_back(num_tiles());
    const int64_t large_end = IsLossy(layout) ? spec.small_begin : spec.num_elems;
    Cut({.layer = layer, .raw = spec.raw}, 0, large_end, dealer);
    first_small_tile_.push_back(num_tiles());
    Cut({.layer = layer, .small = true}, large_end, spec.num_elems, dealer);
  }
  first_tile_.push_back(num_tiles());
}

void TileMap::Cut(Tile tile, int64_t first, int64_t end, StripeDealer& dealer) {
  for (int64_t at = first; at < end; at += WholeTileElems(tile)) {
    tile.first_elem = at;
    tile.num_elems = std::min(WholeTileElems(tile), end - at);
    tile.stripe = dealer.Next(tile.raw ? tile.num_elems / kRawBytesPerDealtElem : tile.num_elems);
    tile.weight_offset_bytes = weight_area_bytes_[tile.stripe];
    tile.state_offset_bytes = state_area_bytes_[tile.stripe];
    weight_area_bytes_[tile.stripe] += WeightBytes(tile);
    state_area_bytes_[tile.stripe] += StateBytes(tile);
    max_weight_bytes_ = std::max(max_weight_bytes_, WeightBytes(tile));
    max_state_bytes_ = std::max(max_state_bytes_, StateBytes(tile));
    tiles_.push_back(tile);
  }
}

int TileMap::TileAt(int layer, int64_t elem) const {
  FOREBAY_CHECK(elem >= 0 && elem < layer_elems_[layer]);
  const int first_small = first_small_tile_[layer];
  const bool small = first_small < first_tile_[layer + 1] && elem >= tiles_[first_small].first_elem;
  const int first = small ? first_small : first_tile_[layer];
  return first +
         static_cast<int>((elem - tiles_[first].first_elem) / WholeTileElems(tiles_[first]));
}

}  // namespace forebay
