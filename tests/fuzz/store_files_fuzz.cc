// The small files of a store: a manifest, or two copies of the commit record (by the
// first byte of the input). Checksums are made here, as no mutation would ever find them. Whatever
// is accepted is written again as it was read.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/base/json.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/swap/tiles/tile_map.h"

namespace {

constexpr char kChecksumKey[] = "xxh3_128";
constexpr int64_t kManyTiles = 1 << 16;

void Require(bool condition) {
  if (!condition) std::abort();
}

void RequireCorrupt(const absl::Status& status) {
  Require(forebay::ExitCodeOf(status) == forebay::ExitCode::kCorrupt);
}

// Every element is in one tile, whose planes lie in its state one after another, and the areas are
// what the tiles take.
void RequireWholeAreas(const forebay::TileMap& tiles, int64_t num_elems) {
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;
  for (const forebay::Tile& tile : tiles.tiles()) {
    const forebay::TilePlanes& planes = tiles.PlanesOf(tile);
    int64_t end = 0;
    for (int plane = 1; plane < planes.size(); ++plane) {
      Require(planes.OffsetBytes(plane, tile.num_elems) == end);
      end += planes.Bytes(plane, tile.num_elems);
    }
    Require(end <= tiles.StateBytes(tile) && tiles.StateBytes(tile) % 4096 == 0);
    weight_bytes += tiles.WeightBytes(tile);
    state_bytes += tiles.StateBytes(tile);
    num_elems -= tile.num_elems;
  }
  Require(num_elems == 0);
  Require(tiles.weight_area_bytes() == weight_bytes && tiles.state_area_bytes() == state_bytes);
}

void FuzzManifest(std::string text) {
  auto json = forebay::ParseJson(text, "fuzzed");
  if (json.ok() && json->is_object()) {
    json->erase(kChecksumKey);
    forebay::Xxh3_128 hash;
    hash.Update(json->dump());
    (*json)[kChecksumKey] = hash.Hex();
    text = json->dump();
  }
  const auto manifest = forebay::DecodeManifest(text, "fuzzed");
  if (!manifest.ok()) return RequireCorrupt(manifest.status());
  const auto again = forebay::DecodeManifest(forebay::EncodeManifest(*manifest), "again");
  Require(again.ok());
  Require(forebay::EncodeManifest(*again) == forebay::EncodeManifest(*manifest));
  const forebay::Inventory& inventory = manifest->inventory;
  Require(inventory.num_params() >= 0 && inventory.num_params() <= inventory.num_padded_elems());
  if (inventory.num_padded_elems() / manifest->tile_elems > kManyTiles) return;
  const forebay::TileMap tiles(inventory, manifest->layout, manifest->tile_elems,
                               manifest->stripe_weights, manifest->moment_set);
  RequireWholeAreas(tiles, inventory.num_padded_elems());
}

using RecordBytes = std::array<std::byte, forebay::kCommitRecordBytes>;

// A record ends with its checksum.
RecordBytes MakeRecord(std::span<const uint8_t> input) {
  RecordBytes bytes = {};
  std::memcpy(bytes.data(), input.data(), std::min(input.size(), bytes.size()));
  if (!input.empty()) {
    constexpr size_t kHashAt = forebay::kCommitRecordBytes - sizeof(uint64_t);
    const uint64_t hash = forebay::Xxh3_64(std::span(bytes).first(kHashAt));
    std::memcpy(bytes.data() + kHashAt, &hash, sizeof(hash));
  }
  return bytes;
}

forebay::DecodedCopy DecodeCopy(std::span<const uint8_t> input) {
  const RecordBytes bytes = MakeRecord(input);
  const auto copy = forebay::DecodeCommitRecord(bytes, "fuzzed");
  if (!copy.ok()) {
    RequireCorrupt(copy.status());
    return {};
  }
  if (copy->state == forebay::CopyState::kGood) {
    std::array<std::byte, forebay::kCommitRecordBytes> again;
    forebay::EncodeCommitRecord(copy->record, again);
    const auto decoded = forebay::DecodeCommitRecord(again, "again");
    Require(decoded.ok() && decoded->state == forebay::CopyState::kGood);
    Require(decoded->record.slot == copy->record.slot && decoded->record.slot <= 1);
    Require(decoded->record.step == copy->record.step);
    Require(decoded->record.trainer == copy->record.trainer);
  }
  return *copy;
}

// Two records of equal length, one after the other.
void FuzzCommit(std::span<const uint8_t> input) {
  const forebay::DecodedCopy first = DecodeCopy(input.first(input.size() / 2));
  const forebay::DecodedCopy second = DecodeCopy(input.subspan(input.size() / 2));
  const auto chosen = forebay::ChooseCommit(first, second, first.record.uuid, "fuzzed");
  // The same two as those of two folders, each with one of them twice.
  const forebay::FolderCopies folders[] = {{"a", first, first}, {"b", second, second}};
  const auto of_folders = forebay::ChooseCommit(folders, first.record.uuid);
  if (!of_folders.ok()) RequireCorrupt(of_folders.status());
  if (of_folders.ok() && of_folders->has_value()) {
    Require((*of_folders)->hash == first.hash || (*of_folders)->hash == second.hash);
  }
  if (!chosen.ok()) return RequireCorrupt(chosen.status());
  if (!chosen->has_value()) return;
  Require((*chosen)->state == forebay::CopyState::kGood);
  Require((*chosen)->record.sequence >= first.record.sequence ||
          first.state != forebay::CopyState::kGood);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::span input(data + 1, size - 1);
  // The corpus has manifests after a 0 and commits after a 1.
  if (data[0] % 2 == 0) {
    FuzzManifest(std::string(reinterpret_cast<const char*>(input.data()), input.size()));
  } else {
    FuzzCommit(input);
  }
  return 0;
}
