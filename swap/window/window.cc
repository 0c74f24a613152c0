#include "forebay/swap/window/window.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "forebay/step/held_pieces.h"

namespace forebay {

int64_t LayerWeightBytes(const TileMap& tiles, int layer) {
  return tiles.layer_elems(layer) * WeightBytesPerElem(tiles.layout());
}

bool IsInPieces(const WindowOptions& options, const TileMap& tiles, int layer) {
  const bool is_block = layer >= options.first_block_layer && layer <= options.last_block_layer;
  return options.piece_elems > 0 && !is_block &&
         tiles.layer_elems(layer) > kPiecesOfBuffer * options.piece_elems;
}

WindowShape WindowShapeOf(const WindowOptions& options, const TileMap& tiles) {
  WindowShape shape;
  int64_t largest_bytes = 0;
  int64_t bytes_of_pieces = 0;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    if (IsInPieces(options, tiles, layer)) {
      bytes_of_pieces = kPiecesOfBuffer * options.piece_elems * WeightBytesPerElem(tiles.layout());
      continue;
    }
    const int64_t bytes = LayerWeightBytes(tiles, layer);
    largest_bytes = std::max(largest_bytes, bytes);
    if (layer >= options.first_block_layer && layer <= options.last_block_layer) {
      shape.block_bytes = std::max(shape.block_bytes, bytes);
    }
  }
  if (largest_bytes > shape.block_bytes) shape.large_bytes = largest_bytes;
  shape.large_bytes = std::max(shape.large_bytes, bytes_of_pieces);
  return shape;
}

WindowBuffers WindowBuffersOf(const WindowOptions& options, const Placement& placement,
                              const TileMap& tiles) {
  const WindowShape shape = WindowShapeOf(options, tiles);
  std::vector<BufferClass> classes;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    const bool fits_block =
        !IsInPieces(options, tiles, layer) && LayerWeightBytes(tiles, layer) <= shape.block_bytes;
    classes.push_back(placement.weights[layer] == Tier::kHost ? BufferClass::kResident
                      : fits_block                            ? BufferClass::kBlock
                                                              : BufferClass::kLarge);
  }
  return WindowBuffers(std::move(classes), {options.num_block_buffers,
                                            shape.large_bytes > 0 ? options.num_large_buffers : 0});
}

}  // namespace forebay
