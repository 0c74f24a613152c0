// Seals: what every tile of a slot must hash to (docs/formats.md, "seals.fbs").
//
// A seal belongs to one tile of one slot. It says what the tile is and where it lies, and has a
// checksum for every part of it: kSealElems elements of one plane, 256 KiB of fp32; what fills up
// the last block of a state has none. Whoever makes a
// tile seals its parts while they are in the cache, and whoever reads it compares them before use.
// The seals of a stripe lie in RAM as they lie on disk: a table for each slot, which becomes real
// with the commit record that names the root of all tables.
//
// Not for: the tables' way to and from the disk (tensor_store_seals.cc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/tiles/tile_map.h"

namespace forebay {

inline constexpr int64_t kSealElems = int64_t{64} << 10;

inline int64_t NumSealParts(const Tile& tile) {
  return (tile.num_elems + kSealElems - 1) / kSealElems;
}

// Where a part of a plane lies in the weights or the state of its tile.
struct PartInHalf {
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};
// `part`: [0, NumSealParts).
PartInHalf PlaceOfPart(const TileMap& tiles, const Tile& tile, int64_t part, int plane);

// All seals of one slot. Thread-safe for different tiles, and for different parts of one tile;
// Close and the tables are for one thread, while nobody seals.
class TileSeals {
 public:
  // Zeroed memory of TableBytes for each stripe. `tiles` must outlive it.
  TileSeals(const TileMap& tiles, const StoreUuid& uuid, uint32_t slot);

  // The size of one table: the commit record that it goes with, the seals, and its own checksum, in
  // whole blocks. 0 for a stripe without tiles.
  static int64_t TableBytes(const TileMap& tiles, int stripe);

  // The bytes of one part, [0, NumSealParts), of a plane, in `half`: all weight bytes of the tile
  // for plane 0, all state bytes for the others.
  static std::span<const std::byte> PartOfPlane(const TileMap& tiles, int tile, int64_t part,
                                                int plane, std::span<const std::byte> half);

  // Take the checksums of one part: of the weights, or of every plane of the state.
  void SealWeights(int tile, int64_t part, std::span<const std::byte> weights);
  void SealState(int tile, int64_t part, std::span<const std::byte> state);
  // The same of all parts.
  void SealWeights(int tile, std::span<const std::byte> weights);
  void SealState(int tile, std::span<const std::byte> state);

  // Whether the bytes of one part of a plane are what was sealed.
  bool Matches(int tile, int64_t part, int plane, std::span<const std::byte> bytes) const;

  // Whether the planes [first_plane, end_plane) of a tile have the same checksums in `other`.
  bool SameChecksums(const TileSeals& other, int tile, int first_plane, int end_plane) const;

  // Completes all seals, for the commit `sequence`, and returns the root over them.
  SealsRoot Close(uint64_t sequence);
  // Writes `record` (as EncodeCommitRecord gives it) to the head of every table, whose bytes are
  // ready then.
  void SetRecord(std::span<const std::byte> record);

  // The memory of a table, block-aligned; empty for a stripe without tiles.
  std::span<std::byte> table(int stripe) { return tables_[stripe].bytes(); }
  // CorruptError when what was read into table(stripe) is damaged, belongs to another store, stripe
  // or slot, or is of another commit than its record; `source` names the file.
  absl::Status CheckTable(int stripe, std::string_view source) const;
  // Of tables that CheckTable found good. The head of one of them: the record that it was
  // written with.
  SealsRoot RootOfTables() const;
  std::span<const std::byte> record(int stripe) const {
    return tables_[stripe].bytes().first(kCommitRecordBytes);
  }

 private:
  // Aligned for direct I/O.
  class Memory {
   public:
    explicit Memory(int64_t size_bytes);
    std::span<std::byte> bytes() const { return {data_.get(), size_bytes_}; }

   private:
    struct Free {
      void operator()(std::byte* data) const;
    };
    std::unique_ptr<std::byte[], Free> data_;
    size_t size_bytes_;
  };

  uint64_t* Checksum(int tile, int64_t part, int plane) const;
  void SealPlane(int tile, int64_t part, int plane, std::span<const std::byte> half);
  std::span<std::byte> SealBytes(int tile) const;

  const TileMap& tiles_;
  const StoreUuid uuid_;
  const uint32_t slot_;
  std::vector<int64_t> seal_offset_bytes_;  // by tile, in its stripe's table
  std::vector<Memory> tables_;              // by stripe
};

}  // namespace forebay
