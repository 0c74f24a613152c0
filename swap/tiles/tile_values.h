// Where the values of a tensor lie in the tiles of its layer, and the copies between the two: a
// tensor is one array for who uses it, and on disk it is parts of planes of tiles, shared with its
// neighbours. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// A tensor has one value in each plane for every element. A tile may store it in two planes of its
// own (TilePlane). In the layouts that are exact, nothing is lost between the two.
enum class TensorPlane : uint8_t {
  kMaster,  // fp32: the exact weight, whatever the layout
  kM,       // fp32: the first moment
  kV,       // fp32: the second moment
  kW16,     // bf16: the weight as stored, where the layout is bf16: the master rounded
  kRaw,     // bytes: of a raw tensor, which has no other (base/tensor_spec.h)
};
// Whether tensors that are not raw have it. Requires: an exact layout, for all but kRaw.
bool Has(const TileMap& tiles, TensorPlane plane);
// The same of any tensor.
bool Has(const TileMap& tiles, const TensorSpec& tensor, TensorPlane plane);
std::string_view NameOf(TensorPlane plane);
constexpr int64_t BytesPerElem(TensorPlane plane) {
  return plane == TensorPlane::kRaw ? 1 : plane == TensorPlane::kW16 ? 2 : 4;
}

// The two things that a tile is read and written as.
enum class TileHalf : uint8_t { kWeights, kState };
inline constexpr TileHalf kTileHalves[] = {TileHalf::kWeights, TileHalf::kState};

// Whether any of `plane` lies in `half`. The master lies in both, but in the fp32 layout. Raw
// bytes lie where weights do.
constexpr bool LiesIn(Layout layout, TensorPlane plane, TileHalf half) {
  const bool weights = half == TileHalf::kWeights;
  if (plane == TensorPlane::kM || plane == TensorPlane::kV) return !weights;
  return weights || (plane == TensorPlane::kMaster && layout != Layout::kFp32);
}

// What of a tensor lies in one tile.
struct TilePart {
  int64_t first_in_tile = 0;    // elements
  int64_t first_in_tensor = 0;  // elements
  int64_t num_elems = 0;
};
TilePart PartInTile(const TileMap& tiles, const TensorSpec& tensor, int tile);

// The tiles with elements of `tensor`: [first, end). None for a tensor without elements.
struct TileRange {
  int first = 0;
  int end = 0;
};
TileRange TilesOf(const TileMap& tiles, const TensorSpec& tensor);

// Copies between `half_bytes`, all weight or state bytes of `tile`, and `values`: all of the
// tensor's `plane`, fp32, bf16 or bytes, of which the part that lies in the tile is touched. A
// master that lies in both halves takes both: from the tiles the weights first, to them in any
// order.
// Requires: LiesIn, Has. Thread-safe for parts that do not overlap.
void CopyFromTile(const TileMap& tiles, int tile, TileHalf half,
                  std::span<const std::byte> half_bytes, const TensorSpec& tensor,
                  TensorPlane plane, std::span<std::byte> values);
void CopyToTile(const TileMap& tiles, int tile, TileHalf half, std::span<std::byte> half_bytes,
                const TensorSpec& tensor, TensorPlane plane, std::span<const std::byte> values);

}  // namespace forebay
