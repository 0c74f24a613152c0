// A table of a store's checksums, as it lies in seals.fbs: a good one, of which the input
// overwrites some bytes. The first byte says of which stripe and layout, and whether the table's
// own checksum is made anew, as no mutation would ever find it.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/tiles/tile_map.h"

namespace {

using forebay::SealsRoot;

void Require(bool condition) {
  if (!condition) std::abort();
}

forebay::Inventory SmallInventory() {
  forebay::Inventory inventory;
  inventory.BeginLayer("embedding");
  inventory.Add("embedding", {300, 256}, 0, true);
  inventory.BeginLayer("block");
  inventory.Add("block", {70, 64}, 1, true);
  inventory.Add("norm", {70}, 2, false);  // in the lossy layouts a tile of its own
  return inventory;
}

const forebay::TileMap& TilesOf(size_t layout) {
  static const auto* const all = [] {
    auto* tiles = new std::vector<forebay::TileMap>;
    for (const forebay::Layout each : forebay::kLayouts) {
      tiles->emplace_back(SmallInventory(), each, forebay::kSealElems,
                          forebay::StripeWeights{2, 1});
    }
    return tiles;
  }();
  return (*all)[layout % all->size()];
}

void MakeChecksum(std::span<std::byte> table) {
  forebay::Xxh3_128 hash;
  hash.Update(table.subspan(forebay::kCommitRecordBytes,
                            table.size() - forebay::kCommitRecordBytes - sizeof(SealsRoot)));
  const SealsRoot digest = hash.Digest();
  std::memcpy(table.data() + table.size() - digest.size(), digest.data(), digest.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const int stripe = data[0] % 2;
  const bool make_checksum = data[0] / 2 % 2 == 1;
  const forebay::TileMap& tiles = TilesOf(data[0] / 4);
  const size_t from = data[1] + size_t{256} * data[2];
  const std::span input(data + 3, size - 3);

  forebay::TileSeals seals(tiles, {1, 2, 3}, 1);
  const SealsRoot root = seals.Close(7);
  std::array<std::byte, forebay::kCommitRecordBytes> record;
  forebay::EncodeCommitRecord({.sequence = 7}, record);
  seals.SetRecord(record);
  const std::span<std::byte> table = seals.table(stripe);
  const std::vector<std::byte> good(table.begin(), table.end());
  const size_t at = from % table.size();
  std::memcpy(table.data() + at, input.data(), std::min(input.size(), table.size() - at));
  if (make_checksum) MakeChecksum(table);

  const absl::Status status = seals.CheckTable(stripe, "fuzzed");
  if (!status.ok()) {
    Require(forebay::ExitCodeOf(status) == forebay::ExitCode::kCorrupt);
    return 0;
  }
  // What lies before the checksums is the commit record, which is compared with the real one.
  const bool unchanged = std::equal(good.begin() + forebay::kCommitRecordBytes, good.end(),
                                    table.begin() + forebay::kCommitRecordBytes);
  Require(unchanged || make_checksum);
  Require((seals.RootOfTables() == root) == unchanged);
  for (int tile = 0; tile < tiles.num_tiles(); ++tile) {
    const forebay::Tile& spec = tiles.tiles()[tile];
    for (int64_t part = 0; part < forebay::NumSealParts(spec); ++part) {
      for (int plane = 0; plane < tiles.PlanesOf(spec).size(); ++plane) {
        seals.Matches(tile, part, plane, {});
      }
    }
  }
  return 0;
}
