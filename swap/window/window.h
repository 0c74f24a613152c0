// The shape of the swapper's window: which buffers there are and which of them may hold which
// layer. Pure; the swapper makes these buffers, and the plan counts with them.
#pragma once

#include <cstdint>

#include "forebay/step/window_buffers.h"
#include "forebay/swap/tiles/placement.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

struct WindowOptions {
  int num_block_buffers = 3;  // window buffers for ordinary layers; >= 2 (one lent, one arriving)
  int num_large_buffers =
      1;  // for layers larger than the largest block (embedding, output projection); >= 1
  int first_block_layer = 1;  // layers in [first, last] are ordinary: they share the block buffers
  int last_block_layer = 1;
  // Above 0: other layers of more elements than two such pieces are lent in pieces, two in memory
  // at a time, unless they live in RAM (piece_cut.h).
  int64_t piece_elems = 0;
  // Whoever computes copies those layers once for each lease, rather than asking for their pieces
  // as it computes.
  bool copies_pieces = false;
};

bool IsInPieces(const WindowOptions& options, const TileMap& tiles, int layer);

struct WindowShape {
  int64_t block_bytes = 0;
  int64_t large_bytes = 0;  // 0: every layer fits a block buffer
};
WindowShape WindowShapeOf(const WindowOptions& options, const TileMap& tiles);

WindowBuffers WindowBuffersOf(const WindowOptions& options, const Placement& placement,
                              const TileMap& tiles);

// The size of the layer's weights as the window holds them.
int64_t LayerWeightBytes(const TileMap& tiles, int layer);

}  // namespace forebay
