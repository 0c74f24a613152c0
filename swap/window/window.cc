#include "forebay/swap/window/window.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace forebay {

int64_t LayerWeightBytes(const TileMap& tiles, int layer) {
  return tiles.layer_elems(layer) * WeightBytesPerElem(tiles.layout());
}

WindowShape WindowShapeOf(const WindowOptions& options, const TileMap& tiles) {
  WindowShape shape;
  int64_t largest_bytes = 0;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    const int64_t bytes = LayerWeightBytes(tiles, layer);
    largest_bytes = std::max(largest_bytes, bytes);
    if (layer >= options.first_block_layer && layer <= options.last_block_layer) {
      shape.block_bytes = std::max(shape.block_bytes, bytes);
    }
  }
  if (largest_bytes > shape.block_bytes) shape.large_bytes = largest_bytes;
  return shape;
}

WindowBuffers WindowBuffersOf(const WindowOptions& options, const Placement& placement,
                              const TileMap& tiles) {
  const WindowShape shape = WindowShapeOf(options, tiles);
  std::vector<BufferClass> classes;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    const bool fits_block = LayerWeightBytes(tiles, layer) <= shape.block_bytes;
    classes.push_back(placement.weights[layer] == Tier::kHost ? BufferClass::kResident
                      : fits_block                            ? BufferClass::kBlock
                                                              : BufferClass::kLarge);
  }
  return WindowBuffers(std::move(classes), {options.num_block_buffers,
                                            shape.large_bytes > 0 ? options.num_large_buffers : 0});
}

}  // namespace forebay
