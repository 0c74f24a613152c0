// How the swapper's layers that are lent in pieces (step/param_source.h) are cut. Pure.
#pragma once

#include <cstdint>

#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// Requires: no tile of the layer lies in two pieces.
struct PieceCut {
  int64_t piece_elems = 0;
  int num_pieces = 0;

  static PieceCut Of(const TileMap& tiles, int layer, int64_t piece_elems) {
    const int64_t elems = tiles.layer_elems(layer);
    return {piece_elems, static_cast<int>((elems + piece_elems - 1) / piece_elems)};
  }
  // The tiles of a piece: [first_tile(piece), first_tile(piece + 1)).
  int FirstTile(const TileMap& tiles, int layer, int piece) const {
    return piece == num_pieces ? tiles.first_tile(layer + 1)
                               : tiles.TileAt(layer, piece * piece_elems);
  }
};

}  // namespace forebay
