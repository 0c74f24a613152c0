// Geometry of the store: which elements each tile holds and where its planes lie on disk. Pure.
//
// A tile is the unit of I/O, update and placement: `tile_elems` consecutive elements of one layer's
// flat vector (the last tile of a layer may be shorter). Tiles are dealt to the stripes in layer
// order (stripes.h) and lie one after another in the areas of theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/swap/layout.h"
#include "forebay/swap/stripes.h"

namespace forebay {

inline constexpr int64_t kDefaultTileElems = int64_t{1} << 20;

struct Tile {
  int layer = 0;
  int64_t first_elem = 0;           // in the layer's flat vector
  int64_t num_elems = 0;            // multiple of kLayerAlignElems
  int stripe = 0;                   // whose areas it lies in
  int64_t weight_offset_bytes = 0;  // in the weights area of either slot
  int64_t state_offset_bytes = 0;   // in the state area of either slot
};

class TileMap {
 public:
  // Requires: tile_elems is a positive multiple of kLayerAlignElems; StripeDealer's of the weights.
  TileMap(const Inventory& inventory, Layout layout, int64_t tile_elems,
          const StripeWeights& stripe_weights = {1});

  Layout layout() const { return layout_; }
  int64_t tile_elems() const { return tile_elems_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  int num_layers() const { return static_cast<int>(layer_elems_.size()); }
  int num_tiles() const { return static_cast<int>(tiles_.size()); }
  // Tiles of `layer`: [first_tile(layer), first_tile(layer + 1)).
  int first_tile(int layer) const { return first_tile_[layer]; }
  int64_t layer_elems(int layer) const { return layer_elems_[layer]; }
  const StripeWeights& stripe_weights() const { return stripe_weights_; }
  int num_stripes() const { return static_cast<int>(stripe_weights_.size()); }
  // Of one slot: of all stripes, and of one.
  int64_t weight_area_bytes() const { return Total(weight_area_bytes_); }
  int64_t state_area_bytes() const { return Total(state_area_bytes_); }
  int64_t weight_area_bytes(int stripe) const { return weight_area_bytes_[stripe]; }
  int64_t state_area_bytes(int stripe) const { return state_area_bytes_[stripe]; }

  // Bytes of a tile's weight plane and of its state planes.
  int64_t WeightBytes(const Tile& tile) const {
    return tile.num_elems * WeightBytesPerElem(layout_);
  }
  int64_t StateBytes(const Tile& tile) const { return tile.num_elems * StateBytesPerElem(layout_); }
  int64_t max_weight_bytes() const { return max_weight_bytes_; }
  int64_t max_state_bytes() const { return max_state_bytes_; }

 private:
  Layout layout_;
  int64_t tile_elems_;
  std::vector<Tile> tiles_;
  std::vector<int> first_tile_;
  std::vector<int64_t> layer_elems_;
  StripeWeights stripe_weights_;
  StripeBytes weight_area_bytes_;
  StripeBytes state_area_bytes_;
  int64_t max_weight_bytes_ = 0;
  int64_t max_state_bytes_ = 0;
};

// Where the planes of a state tile begin, in bytes, within its state bytes: [r16] m v.
struct StatePlanes {
  int64_t remainder = 0;  // int16, bf16 layout only
  int64_t m = 0;          // fp32
  int64_t v = 0;          // fp32
};
StatePlanes PlanesOf(Layout layout, int64_t num_elems);

// All planes of a tile by number: 0 is the weights', the others are the state's in their order.
inline int NumPlanes(Layout layout) {
  return layout == Layout::kBf16 ? 4 : 3;
}
inline int64_t PlaneElemBytes(Layout layout, int plane) {
  if (plane == 0) return WeightBytesPerElem(layout);
  return layout == Layout::kBf16 && plane == 1 ? 2 : 4;
}
// Where a plane begins, within the weight bytes or the state bytes of a tile.
int64_t PlaneOffsetBytes(Layout layout, int plane, int64_t num_elems);

}  // namespace forebay
