#include "forebay/swap/records/gradient_seals.h"

#include <algorithm>
#include <utility>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/base/round_up.h"
#include "forebay/swap/records/tile_seals.h"

namespace forebay {
namespace {

std::span<const std::byte> PartOf(const Tile& tile, int64_t part,
                                  std::span<const std::byte> gradient, int64_t elem_bytes) {
  const int64_t first = part * kSealElems;
  const int64_t count = std::min(kSealElems, tile.num_elems - first);
  return gradient.subspan(first * elem_bytes, count * elem_bytes);
}

}  // namespace

int64_t GradientSeals::TableBytes(const TileMap& tiles) {
  int64_t num_parts = 0;
  for (const Tile& tile : tiles.tiles()) num_parts += NumSealParts(tile);
  const auto bytes = num_parts * static_cast<int64_t>(sizeof(uint64_t));
  return RoundUp(bytes, kIoAlignBytes);
}

absl::StatusOr<GradientSeals> GradientSeals::Create(const TileMap& tiles, MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(HostBuffer memory,
                           HostBuffer::Create(budget, "checksums of gradients", TableBytes(tiles)));
  return GradientSeals(tiles, std::move(memory));
}

GradientSeals::GradientSeals(const TileMap& tiles, HostBuffer memory)
    : tiles_(&tiles), memory_(std::move(memory)) {
  int64_t num_parts = 0;
  for (const Tile& tile : tiles.tiles()) {
    first_part_.push_back(num_parts);
    num_parts += NumSealParts(tile);
  }
}

void GradientSeals::Seal(int tile, int64_t part, std::span<const std::byte> gradient,
                         int64_t elem_bytes) {
  Checksum(tile, part) = Xxh3_64(PartOf(tiles_->tiles()[tile], part, gradient, elem_bytes));
}

bool GradientSeals::Matches(int tile, int64_t part, std::span<const std::byte> gradient,
                            int64_t elem_bytes) const {
  return Checksum(tile, part) == Xxh3_64(PartOf(tiles_->tiles()[tile], part, gradient, elem_bytes));
}

}  // namespace forebay
