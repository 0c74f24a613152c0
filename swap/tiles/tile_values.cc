#include "forebay/swap/tiles/tile_values.h"

#include <algorithm>
#include <cstring>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

TilePlane KindOf(Layout layout, TensorPlane plane, TileHalf half) {
  if (plane == TensorPlane::kRaw) return TilePlane::kRaw;
  if (plane == TensorPlane::kM) return TilePlane::kM;
  if (plane == TensorPlane::kV) return TilePlane::kV;
  if (half == TileHalf::kWeights) return TilePlane::kWeight;
  return WeightFormatOf(layout) == WeightFormat::kFp16 ? TilePlane::kMaster : TilePlane::kRemainder;
}

// Where the part begins in the half of its tile.
int64_t OffsetInHalf(const TileMap& tiles, int tile, TileHalf half, TensorPlane plane,
                     const TilePart& part) {
  const Tile& spec = tiles.tiles()[tile];
  const TilePlanes& planes = tiles.PlanesOf(spec);
  FOREBAY_CHECK(planes.moments() == MomentFormat::kFp32);
  const int number = planes.Find(KindOf(tiles.layout(), plane, half));
  FOREBAY_CHECK(number >= 0);
  return planes.OffsetBytes(number, spec.num_elems) +
         part.first_in_tile * planes.Bytes(number, spec.num_elems) / spec.num_elems;
}

// Of the master: what its weight is made of.
WeightFormat FormatOf(Layout layout, TensorPlane plane) {
  return plane == TensorPlane::kMaster ? WeightFormatOf(layout) : WeightFormat::kFp32;
}

void CopyBytes(const std::byte* from, std::byte* to, int64_t num_elems, int64_t elem_bytes) {
  std::memcpy(to, from, static_cast<size_t>(num_elems * elem_bytes));
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
    case TensorPlane::kRaw:
      return "raw";
  }
  return "";
}

bool Has(const TileMap& tiles, TensorPlane plane) {
  switch (plane) {
    case TensorPlane::kMaster:
      return true;
    case TensorPlane::kM:
      return tiles.moment_set().m;
    case TensorPlane::kV:
      return tiles.moment_set().v;
    case TensorPlane::kW16:
      return WeightFormatOf(tiles.layout()) == WeightFormat::kSplitBf16;
    case TensorPlane::kRaw:
      break;
  }
  return false;
}

bool Has(const TileMap& tiles, const TensorSpec& tensor, TensorPlane plane) {
  return tensor.raw ? plane == TensorPlane::kRaw : Has(tiles, plane);
}

TilePart PartInTile(const TileMap& tiles, const TensorSpec& tensor, int tile) {
  const Tile& spec = tiles.tiles()[tile];
  const int64_t begin = std::max(tensor.offset_elems, spec.first_elem);
  const int64_t end =
      std::min(tensor.offset_elems + tensor.num_elems, spec.first_elem + spec.num_elems);
  return {begin - spec.first_elem, begin - tensor.offset_elems, std::max<int64_t>(0, end - begin)};
}

TileRange TilesOf(const TileMap& tiles, const TensorSpec& tensor) {
  if (tensor.num_elems == 0) return {};
  const int64_t last_elem = tensor.offset_elems + tensor.num_elems - 1;
  return {tiles.TileAt(tensor.layer, tensor.offset_elems),
          tiles.TileAt(tensor.layer, last_elem) + 1};
}

void CopyFromTile(const TileMap& tiles, int tile, TileHalf half,
                  std::span<const std::byte> half_bytes, const TensorSpec& tensor,
                  TensorPlane plane, std::span<std::byte> values) {
  const TilePart part = PartInTile(tiles, tensor, tile);
  const std::byte* from = half_bytes.data() + OffsetInHalf(tiles, tile, half, plane, part);
  std::byte* to = values.data() + part.first_in_tensor * BytesPerElem(plane);
  const WeightFormat format = FormatOf(tiles.layout(), plane);
  // Beside an fp16 weight the state has all of the master.
  if (format == WeightFormat::kFp16 && half == TileHalf::kWeights) return;
  if (format != WeightFormat::kSplitBf16) {
    CopyBytes(from, to, part.num_elems, BytesPerElem(plane));
    return;
  }
  auto* master = reinterpret_cast<float*>(to);
  if (half == TileHalf::kWeights) {
    const auto* w16 = reinterpret_cast<const Bf16*>(from);
    for (int64_t i = 0; i < part.num_elems; ++i) master[i] = Bf16ToFloat(w16[i]);
  } else {
    const auto* r16 = reinterpret_cast<const int16_t*>(from);
    for (int64_t i = 0; i < part.num_elems; ++i) master[i] = JoinRest(master[i], r16[i]);
  }
}

void CopyToTile(const TileMap& tiles, int tile, TileHalf half, std::span<std::byte> half_bytes,
                const TensorSpec& tensor, TensorPlane plane, std::span<const std::byte> values) {
  FOREBAY_CHECK(plane != TensorPlane::kW16);
  const TilePart part = PartInTile(tiles, tensor, tile);
  std::byte* to = half_bytes.data() + OffsetInHalf(tiles, tile, half, plane, part);
  const std::byte* from = values.data() + part.first_in_tensor * BytesPerElem(plane);
  const WeightFormat format = FormatOf(tiles.layout(), plane);
  if (format == WeightFormat::kFp16 && half == TileHalf::kWeights) {
    auto* fp16 = reinterpret_cast<Fp16*>(to);
    const auto* master = reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < part.num_elems; ++i) fp16[i] = FloatToFp16(master[i]);
    return;
  }
  if (format != WeightFormat::kSplitBf16) {
    CopyBytes(from, to, part.num_elems, BytesPerElem(plane));
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
