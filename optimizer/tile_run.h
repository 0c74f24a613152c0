// The planes of a tile in memory as what an update takes. Pure.
#pragma once

#include <cstddef>
#include <span>

#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// All elements of `tile`, of which `weights` and `state` are all bytes; without gradients and
// constants. Borrows both.
TileRun RunOf(const TileMap& tiles, const Tile& tile, std::span<std::byte> weights,
              std::span<std::byte> state);

}  // namespace forebay
