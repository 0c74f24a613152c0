// Geometry of the store: which elements each tile holds and where its planes lie on disk. Pure.
//
// A tile is the unit of I/O, update and placement: `tile_elems` consecutive elements of one layer's
// flat vector (the last tile of a layer may be shorter). In a lossy layout small tensors have tiles
// of their own: of a layer two may be shorter then. Tiles are dealt to the stripes in layer order
// (stripes.h) and lie one after another in the areas of theirs.
//
// A raw layer (base/tensor_spec.h) has elements of one byte and tiles of kRawBytesPerTileElem times
// as many, as large as a tile of bf16 weights: whole blocks, and never larger than other tiles.
// Their bytes lie in the weights area; in the state area they have nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/swap/tiles/layout.h"
#include "forebay/swap/tiles/stripes.h"
#include "forebay/swap/tiles/tile_planes.h"

namespace forebay {

inline constexpr int64_t kDefaultTileElems = int64_t{1} << 20;
inline constexpr int64_t kRawBytesPerTileElem = 2;
// As many bytes of a raw tile count as one element when tiles are dealt to the stripes: about what
// an element has in weights and state.
inline constexpr int64_t kRawBytesPerDealtElem = 8;

struct Tile {
  int layer = 0;
  int64_t first_elem = 0;           // in the layer's flat vector
  int64_t num_elems = 0;            // multiple of kLayerAlignElems
  bool small = false;               // of small tensors alone, in a lossy layout
  bool raw = false;                 // of a raw layer
  int stripe = 0;                   // whose areas it lies in
  int64_t weight_offset_bytes = 0;  // in the weights area of either slot
  int64_t state_offset_bytes = 0;   // in the state area of either slot
};

class TileMap {
 public:
  // Requires: tile_elems is a positive multiple of kLayerAlignElems; StripeDealer's of the weights.
  TileMap(const Inventory& inventory, Layout layout, int64_t tile_elems,
          const StripeWeights& stripe_weights = {1}, MomentSet moment_set = {});

  Layout layout() const { return layout_; }
  MomentSet moment_set() const { return moment_set_; }
  int64_t tile_elems() const { return tile_elems_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  int num_layers() const { return static_cast<int>(layer_elems_.size()); }
  int num_tiles() const { return static_cast<int>(tiles_.size()); }
  // As Inventory has them, and their tiles: the first of all.
  int num_streamed_layers() const { return num_streamed_layers_; }
  int num_streamed_tiles() const { return first_tile_[num_streamed_layers_]; }
  std::span<const Tile> streamed_tiles() const {
    return std::span(tiles_).first(static_cast<size_t>(num_streamed_tiles()));
  }
  // Tiles of `layer`: [first_tile(layer), first_tile(layer + 1)).
  int first_tile(int layer) const { return first_tile_[layer]; }
  // The tile of `layer` with element `elem` of its flat vector.
  int TileAt(int layer, int64_t elem) const;
  int64_t layer_elems(int layer) const { return layer_elems_[layer]; }
  const StripeWeights& stripe_weights() const { return stripe_weights_; }
  int num_stripes() const { return static_cast<int>(stripe_weights_.size()); }
  // The areas of one slot: in all stripes, and in one.
  int64_t weight_area_bytes() const { return Total(weight_area_bytes_); }
  int64_t state_area_bytes() const { return Total(state_area_bytes_); }
  int64_t weight_area_bytes(int stripe) const { return weight_area_bytes_[stripe]; }
  int64_t state_area_bytes(int stripe) const { return state_area_bytes_[stripe]; }

  // Bytes of a tile's first plane, the weights or what is raw, and of its state planes.
  int64_t WeightBytes(const Tile& tile) const {
    return tile.raw ? tile.num_elems : tile.num_elems * WeightBytesPerElem(layout_);
  }
  int64_t StateBytes(const Tile& tile) const { return PlanesOf(tile).StateBytes(tile.num_elems); }
  int64_t max_weight_bytes() const { return max_weight_bytes_; }
  int64_t max_state_bytes() const { return max_state_bytes_; }
  int64_t max_tile_elems() const { return max_weight_bytes_ / WeightBytesPerElem(layout_); }

  const TilePlanes& PlanesOf(const Tile& tile) const {
    return tile.raw ? planes_of_raw_ : tile.small ? planes_of_small_ : planes_;
  }

 private:
  // Adds the tiles of elements [first, end) of a layer: `tile` says of which, and of what kind.
  void Cut(Tile tile, int64_t first, int64_t end, StripeDealer& dealer);
  // The elements of a tile that is not its layer's last.
  int64_t WholeTileElems(const Tile& tile) const {
    return tile.raw ? kRawBytesPerTileElem * tile_elems_ : tile_elems_;
  }

  Layout layout_;
  MomentSet moment_set_;
  TilePlanes planes_;
  TilePlanes planes_of_small_;
  TilePlanes planes_of_raw_ = TilePlanes::OfRaw();
  int64_t tile_elems_;
  int num_streamed_layers_;
  std::vector<Tile> tiles_;
  std::vector<int> first_tile_;
  std::vector<int64_t> layer_elems_;
  std::vector<int> first_small_tile_;  // by layer; the end of its tiles where it has none
  StripeWeights stripe_weights_;
  StripeBytes weight_area_bytes_;
  StripeBytes state_area_bytes_;
  int64_t max_weight_bytes_ = 0;
  int64_t max_state_bytes_ = 0;
};

}  // namespace forebay
