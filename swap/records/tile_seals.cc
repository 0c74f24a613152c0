#include "forebay/swap/records/tile_seals.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/base/round_up.h"
#include "forebay/base/sealed_record.h"

namespace forebay {
namespace {

constexpr char kSealMagic[4] = {'F', 'B', 'T', 'S'};

// The bytes on disk (docs/formats.md, "seals.fbs"); natural alignment leaves no holes. The
// checksums of the parts follow, plane by plane.
struct DiskSeal {
  char magic[4];
  uint32_t tile;
  uint32_t layer;
  uint32_t slot;
  int64_t first_elem;
  int64_t num_elems;
  int64_t weight_offset_bytes;  // in weights.fbs
  int64_t state_offset_bytes;   // in state.fbs
  uint64_t sequence;            // of the commit that wrote this table
  uint64_t hash;  // the first 8 bytes of the XXH3-128 of everything before it and of the checksums
};
static_assert(sizeof(DiskSeal) == 64);

// The end of a table.
struct DiskTrailer {
  static constexpr RecordKind kKind = {{'F', 'B', 'S', 'E', 'A', 'L', 'E', 'D'}, 1};
  RecordKind kind;
  uint32_t stripe;
  uint32_t slot;
  uint32_t zero;
  uint8_t uuid[16];
  uint64_t sequence;
  SealsRoot hash;  // XXH3-128 of the table behind its record, up to here
};
static_assert(sizeof(DiskTrailer) == 64 && offsetof(DiskTrailer, hash) == 48);

int64_t SealSize(const TileMap& tiles, const Tile& tile) {
  return static_cast<int64_t>(sizeof(DiskSeal)) +
         NumSealParts(tile) * tiles.PlanesOf(tile).size() * 8;
}

DiskTrailer* TrailerOf(std::span<std::byte> table) {
  return reinterpret_cast<DiskTrailer*>(table.data() + table.size() - sizeof(DiskTrailer));
}

SealsRoot HashOf(std::span<const std::byte> table) {
  Xxh3_128 hash;
  hash.Update(
      table.subspan(kCommitRecordBytes, table.size() - kCommitRecordBytes - sizeof(SealsRoot)));
  return hash.Digest();
}

}  // namespace

PartInHalf PlaceOfPart(const TileMap& tiles, const Tile& tile, int64_t part, int plane) {
  const TilePlanes& planes = tiles.PlanesOf(tile);
  const int64_t first = part * kSealElems;
  return {planes.OffsetBytes(plane, tile.num_elems) + planes.Bytes(plane, first),
          planes.Bytes(plane, std::min(kSealElems, tile.num_elems - first))};
}

TileSeals::Memory::Memory(int64_t size_bytes) : size_bytes_(static_cast<size_t>(size_bytes)) {
  if (size_bytes_ == 0) return;
  data_.reset(
      static_cast<std::byte*>(::operator new[](size_bytes_, std::align_val_t{kIoAlignBytes})));
  std::memset(data_.get(), 0, size_bytes_);
}

void TileSeals::Memory::Free::operator()(std::byte* data) const {
  ::operator delete[](data, std::align_val_t{kIoAlignBytes});
}

int64_t TileSeals::TableBytes(const TileMap& tiles, int stripe) {
  int64_t bytes = 0;
  for (const Tile& tile : tiles.tiles()) {
    if (tile.stripe == stripe) bytes += SealSize(tiles, tile);
  }
  if (bytes == 0) return 0;
  bytes += kCommitRecordBytes + static_cast<int64_t>(sizeof(DiskTrailer));
  return RoundUp(bytes, kIoAlignBytes);
}

TileSeals::TileSeals(const TileMap& tiles, const StoreUuid& uuid, uint32_t slot)
    : tiles_(tiles), uuid_(uuid), slot_(slot) {
  std::vector<int64_t> end_bytes(static_cast<size_t>(tiles.num_stripes()), kCommitRecordBytes);
  for (const Tile& tile : tiles.tiles()) {
    seal_offset_bytes_.push_back(end_bytes[tile.stripe]);
    end_bytes[tile.stripe] += SealSize(tiles, tile);
  }
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    tables_.emplace_back(TableBytes(tiles, stripe));
  }
}

std::span<std::byte> TileSeals::SealBytes(int tile) const {
  const Tile& spec = tiles_.tiles()[tile];
  return tables_[spec.stripe].bytes().subspan(static_cast<size_t>(seal_offset_bytes_[tile]),
                                              static_cast<size_t>(SealSize(tiles_, spec)));
}

uint64_t* TileSeals::Checksum(int tile, int64_t part, int plane) const {
  const Tile& spec = tiles_.tiles()[tile];
  const int64_t num_parts = NumSealParts(spec);
  FOREBAY_CHECK(part >= 0 && part < num_parts);
  FOREBAY_CHECK(plane >= 0 && plane < tiles_.PlanesOf(spec).size());
  return reinterpret_cast<uint64_t*>(SealBytes(tile).data() + sizeof(DiskSeal)) +
         plane * num_parts + part;
}

std::span<const std::byte> TileSeals::PartOfPlane(const TileMap& tiles, int tile, int64_t part,
                                                  int plane, std::span<const std::byte> half) {
  const Tile& spec = tiles.tiles()[tile];
  const PartInHalf place = PlaceOfPart(tiles, spec, part, plane);
  return half.subspan(static_cast<size_t>(place.offset_bytes),
                      static_cast<size_t>(place.size_bytes));
}

// ---- Sealing and comparing

void TileSeals::SealPlane(int tile, int64_t part, int plane, std::span<const std::byte> half) {
  *Checksum(tile, part, plane) = Xxh3_64(PartOfPlane(tiles_, tile, part, plane, half));
}

void TileSeals::SealWeights(int tile, int64_t part, std::span<const std::byte> weights) {
  SealPlane(tile, part, 0, weights);
}

void TileSeals::SealState(int tile, int64_t part, std::span<const std::byte> state) {
  const int num_planes = tiles_.PlanesOf(tiles_.tiles()[tile]).size();
  for (int plane = 1; plane < num_planes; ++plane) SealPlane(tile, part, plane, state);
}

void TileSeals::SealWeights(int tile, std::span<const std::byte> weights) {
  const int64_t num_parts = NumSealParts(tiles_.tiles()[tile]);
  for (int64_t part = 0; part < num_parts; ++part) SealWeights(tile, part, weights);
}

void TileSeals::SealState(int tile, std::span<const std::byte> state) {
  const int64_t num_parts = NumSealParts(tiles_.tiles()[tile]);
  for (int64_t part = 0; part < num_parts; ++part) SealState(tile, part, state);
}

bool TileSeals::Matches(int tile, int64_t part, int plane, std::span<const std::byte> bytes) const {
  return *Checksum(tile, part, plane) == Xxh3_64(bytes);
}

bool TileSeals::SameChecksums(const TileSeals& other, int tile, int first_plane,
                              int end_plane) const {
  const int64_t num_parts = NumSealParts(tiles_.tiles()[tile]);
  for (int plane = first_plane; plane < end_plane; ++plane) {
    const uint64_t* first = Checksum(tile, 0, plane);
    if (!std::equal(first, first + num_parts, other.Checksum(tile, 0, plane))) return false;
  }
  return true;
}

// ---- Tables

SealsRoot TileSeals::Close(uint64_t sequence) {
  for (int i = 0; i < tiles_.num_tiles(); ++i) {
    const Tile& tile = tiles_.tiles()[i];
    const std::span<std::byte> bytes = SealBytes(i);
    DiskSeal seal = {};
    std::memcpy(seal.magic, kSealMagic, sizeof(kSealMagic));
    seal.tile = static_cast<uint32_t>(i);
    seal.layer = static_cast<uint32_t>(tile.layer);
    seal.slot = slot_;
    seal.first_elem = tile.first_elem;
    seal.num_elems = tile.num_elems;
    seal.weight_offset_bytes =
        slot_ * tiles_.weight_area_bytes(tile.stripe) + tile.weight_offset_bytes;
    seal.state_offset_bytes =
        slot_ * tiles_.state_area_bytes(tile.stripe) + tile.state_offset_bytes;
    seal.sequence = sequence;
    Xxh3_128 hash;
    hash.Update(std::as_bytes(std::span(&seal, 1)).first(offsetof(DiskSeal, hash)));
    hash.Update(bytes.subspan(sizeof(DiskSeal)));
    std::memcpy(&seal.hash, hash.Digest().data(), sizeof(seal.hash));
    std::memcpy(bytes.data(), &seal, sizeof(seal));
  }
  for (int stripe = 0; stripe < tiles_.num_stripes(); ++stripe) {
    const std::span<std::byte> bytes = table(stripe);
    if (bytes.empty()) continue;
    DiskTrailer trailer = {};
    trailer.kind = DiskTrailer::kKind;
    trailer.stripe = static_cast<uint32_t>(stripe);
    trailer.slot = slot_;
    std::ranges::copy(uuid_, trailer.uuid);
    trailer.sequence = sequence;
    std::memcpy(TrailerOf(bytes), &trailer, sizeof(trailer));
    TrailerOf(bytes)->hash = HashOf(bytes);
  }
  return RootOfTables();
}

void TileSeals::SetRecord(std::span<const std::byte> record) {
  FOREBAY_CHECK(static_cast<int64_t>(record.size()) == kCommitRecordBytes);
  for (const Memory& memory : tables_) {
    if (!memory.bytes().empty()) std::ranges::copy(record, memory.bytes().begin());
  }
}

absl::Status TileSeals::CheckTable(int stripe, std::string_view source) const {
  const std::span<std::byte> bytes = tables_[stripe].bytes();
  DiskTrailer trailer;
  std::memcpy(&trailer, TrailerOf(bytes), sizeof(trailer));
  const auto bad = [&](std::string_view what) {
    return CorruptError(
        fmt::format("the checksums in '{}' (slot {}) {}", source, slot_ == 0 ? "A" : "B", what));
  };
  const RecordFault fault = FaultOf(trailer, HashOf(bytes));
  if (fault == RecordFault::kOtherMagic) return bad("are damaged, or were never written");
  if (fault == RecordFault::kDamaged) return bad("are damaged");
  if (fault == RecordFault::kOtherVersion) {
    return bad(
        fmt::format("have format version {}; this program reads version {}. Use the forebay "
                    "that wrote them",
                    trailer.kind.version, DiskTrailer::kKind.version));
  }
  if (!std::ranges::equal(trailer.uuid, uuid_)) return bad("are of another store");
  FOREBAY_ASSIGN_OR_RETURN(const DecodedCopy head, DecodeCommitRecord(record(stripe), source));
  if (head.state != CopyState::kGood) return bad("are damaged: the record before them is");
  if (head.record.sequence != trailer.sequence) {
    return bad(fmt::format("are of commit {} behind a record of commit {}: a write was torn",
                           trailer.sequence, head.record.sequence));
  }
  if (trailer.stripe != static_cast<uint32_t>(stripe) || trailer.slot != slot_) {
    return bad(fmt::format("are of slot {} of stripe {}: something was written to the wrong place",
                           trailer.slot == 0 ? "A" : "B", trailer.stripe));
  }
  return absl::OkStatus();
}

SealsRoot TileSeals::RootOfTables() const {
  Xxh3_128 root;
  for (const Memory& memory : tables_) {
    if (memory.bytes().empty()) continue;
    root.Update(memory.bytes().last(sizeof(SealsRoot)));
  }
  return root.Digest();
}

}  // namespace forebay
