#include "forebay/swap/tile_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

// By the number that PlaneOffsetBytes knows it by.
int PlaneNumber(Layout layout, TensorPlane plane, TileHalf half) {
  if (plane == TensorPlane::kM) return NumPlanes(layout) - 2;
  if (plane == TensorPlane::kV) return NumPlanes(layout) - 1;
  return half == TileHalf::kWeights ? 0 : 1;
}

int64_t OffsetInHalf(const TileMap& tiles, int tile, TileHalf half, TensorPlane plane,
                     const TilePart& part) {
  const int number = PlaneNumber(tiles.layout(), plane, half);
  return PlaneOffsetBytes(tiles.layout(), number, tiles.tiles()[tile].num_elems) +
         part.first_in_tile * PlaneElemBytes(tiles.layout(), number);
}

bool IsSplit(Layout layout, TensorPlane plane) {
  return layout == Layout::kBf16 && plane == TensorPlane::kMaster;
}

}  // namespace

std::string_view NameOf(TensorPlane plane) {
  switch (plane) {
    case TensorPlane::kMaster:
      return "master";
    case TensorPlane::kM:
      return "m";
    case TensorPlane::kV:
      return "v";
    case TensorPlane::kW16:
      return "w16";
  }
  return "";
}

TilePart PartInTile(const TileMap& tiles, const TensorSpec& tensor, int tile) {
  const Tile& spec = tiles.tiles()[tile];
  const int64_t begin = std::max(tensor.offset_elems, spec.first_elem);
  const int64_t end =
      std::min(tensor.offset_elems + tensor.num_elems, spec.first_elem + spec.num_elems);
  return {begin - spec.first_elem, begin - tensor.offset_elems, std::max<int64_t>(0, end - begin)};
}

TileRange TilesOf(const TileMap& tiles, const TensorSpec& tensor) {
  const int first =
      tiles.first_tile(tensor.layer) + static_cast<int>(tensor.offset_elems / tiles.tile_elems());
  if (tensor.num_elems == 0) return {first, first};
  const int64_t last_elem = tensor.offset_elems + tensor.num_elems - 1;
  return {first,
          tiles.first_tile(tensor.layer) + static_cast<int>(last_elem / tiles.tile_elems()) + 1};
}

void CopyFromTile(const TileMap& tiles, int tile, TileHalf half,
                  std::span<const std::byte> half_bytes, const TensorSpec& tensor,
                  TensorPlane plane, std::span<std::byte> values) {
  const TilePart part = PartInTile(tiles, tensor, tile);
  const std::byte* from = half_bytes.data() + OffsetInHalf(tiles, tile, half, plane, part);
  std::byte* to = values.data() + part.first_in_tensor * BytesPerElem(plane);
  if (!IsSplit(tiles.layout(), plane)) {
    std::memcpy(to, from, static_cast<size_t>(part.num_elems * BytesPerElem(plane)));
    return;
  }
  auto* master = reinterpret_cast<float*>(to);
  if (half == TileHalf::kWeights) {
    const auto* w16 = reinterpret_cast<const Bf16*>(from);
    for (int64_t i = 0; i < part.num_elems; ++i) master[i] = Bf16ToFloat(w16[i]);
  } else {
    // As Join, with the first half of it done.
    const auto* r16 = reinterpret_cast<const int16_t*>(from);
    for (int64_t i = 0; i < part.num_elems; ++i) {
      const auto remainder = static_cast<uint32_t>(static_cast<int32_t>(r16[i]));
      master[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(master[i]) + remainder);
    }
  }
}

void CopyToTile(const TileMap& tiles, int tile, TileHalf half, std::span<std::byte> half_bytes,
                const TensorSpec& tensor, TensorPlane plane, std::span<const std::byte> values) {
  FOREBAY_CHECK(plane != TensorPlane::kW16);
  const TilePart part = PartInTile(tiles, tensor, tile);
  std::byte* to = half_bytes.data() + OffsetInHalf(tiles, tile, half, plane, part);
  const std::byte* from = values.data() + part.first_in_tensor * BytesPerElem(plane);
  if (!IsSplit(tiles.layout(), plane)) {
    std::memcpy(to, from, static_cast<size_t>(part.num_elems * BytesPerElem(plane)));
    return;
  }
  const auto* master = reinterpret_cast<const float*>(from);
  if (half == TileHalf::kWeights) {
    auto* w16 = reinterpret_cast<Bf16*>(to);
    for (int64_t i = 0; i < part.num_elems; ++i) w16[i] = Split(master[i]).w16;
  } else {
    auto* r16 = reinterpret_cast<int16_t*>(to);
    for (int64_t i = 0; i < part.num_elems; ++i) r16[i] = Split(master[i]).r16;
  }
}

}  // namespace forebay
