// Checksums of the gradients that lie in a store's scratch area: of every part of a tile
// (tile_seals.h), in one table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

// Thread-safe for different parts of a tile.
class GradientSeals {
 public:
  // The size of the table: eight bytes for each part of each tile, in whole blocks.
  static int64_t TableBytes(const TileMap& tiles);

  // `tiles` and `budget` must outlive it. OutOfMemoryError.
  static absl::StatusOr<GradientSeals> Create(const TileMap& tiles, MemoryBudget* budget);

  // `gradient`: of the whole tile, `elem_bytes` for each element.
  void Seal(int tile, int64_t part, std::span<const std::byte> gradient, int64_t elem_bytes);
  bool Matches(int tile, int64_t part, std::span<const std::byte> gradient,
               int64_t elem_bytes) const;

 private:
  GradientSeals(const TileMap& tiles, HostBuffer memory);
  uint64_t& Checksum(int tile, int64_t part) const {
    return memory_.As<uint64_t>()[first_part_[tile] + part];
  }

  const TileMap* tiles_;
  HostBuffer memory_;
  std::vector<int64_t> first_part_;  // by tile
};

}  // namespace forebay
