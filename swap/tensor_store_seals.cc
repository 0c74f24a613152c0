// The checksums of the store: on disk, and compared with what is read (docs/formats.md,
// "seals.fbs").
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/tensor_store_impl.h"

namespace forebay {
namespace {

std::string DeviceOf(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? DeviceName(info.st_dev) : "unknown";
}

}  // namespace

// ---- Tables

// Both copies of every stripe's table, side by side. Made durable with the data (FlushData).
absl::Status TensorStore::Impl::WriteSeals(uint32_t slot) {
  std::vector<IoOp> ops(2 * stripes.size());
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    const std::span<std::byte> table = seals[slot].table(stripe);
    if (table.empty()) continue;
    for (const int copy : {0, 1}) {
      Start(ops[2 * static_cast<size_t>(stripe) + static_cast<size_t>(copy)], IoKind::kWrite,
            IoClass::kWriteBack, stripes[stripe].seals_file, TableOffset(stripe, slot, copy),
            table);
    }
  }
  absl::Status status;
  for (IoOp& op : ops) status.Update(engine->Wait(op));
  return status;
}

// The first copy that is whole and goes with the record; where that is the second, it is written to
// the place of the first again, so that two are there whatever happens next.
absl::Status TensorStore::Impl::ReadTable(int stripe, uint32_t slot,
                                          std::span<const std::byte> record_bytes) {
  const std::string source = JoinPath(directories[stripe], kSealsName);
  absl::Status first_error;
  for (const int copy : {0, 1}) {
    absl::Status status = RunOp(IoKind::kRead, stripes[stripe].seals_file,
                                TableOffset(stripe, slot, copy), seals[slot].table(stripe));
    if (status.ok()) status = seals[slot].CheckTable(stripe, source);
    if (status.ok() && !std::ranges::equal(seals[slot].record(stripe), record_bytes)) {
      status = CorruptError(fmt::format(
          "the checksums in '{}' (slot {}) are of another step than the commit record, step {}",
          source, slot == 0 ? "A" : "B", record.step));
    }
    if (status.ok()) return copy == 0 ? status : RepairTable(stripe, slot);
    first_error.Update(status);
  }
  return first_error;
}

absl::Status TensorStore::Impl::RepairTable(int stripe, uint32_t slot) {
  const int file = stripes[stripe].seals_file;
  FOREBAY_RETURN_IF_ERROR(
      RunOp(IoKind::kWrite, file, TableOffset(stripe, slot, 0), seals[slot].table(stripe)));
  return Flush(std::array{file});
}

absl::Status TensorStore::Impl::ReadSeals(uint32_t slot, std::span<const std::byte> record_bytes) {
  absl::Status status;
  for (int stripe = 0; stripe < tiles.num_stripes() && status.ok(); ++stripe) {
    if (!seals[slot].table(stripe).empty()) status = ReadTable(stripe, slot, record_bytes);
  }
  if (status.ok() && seals[slot].RootOfTables() != record.seals_root) {
    status = CorruptError(fmt::format(
        "the checksums of {} do not belong to the commit of step {}: a write was lost or landed in "
        "the wrong place",
        Where(), record.step));
  }
  if (status.ok()) return status;
  return Annotate(status,
                  "without its checksums it cannot be said whether the store is whole. Restore it "
                  "from a copy, or start again from the last exported model");
}

int64_t TensorStore::SealBytes(const TileMap& tiles) {
  int64_t bytes = 0;
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    bytes += 2 * TileSeals::TableBytes(tiles, stripe);
  }
  return bytes;
}

// ---- Tiles

void TensorStore::SealWeights(int tile, int64_t part, std::span<const std::byte> weights) {
  impl_->seals[impl_->working_slot()].SealWeights(tile, part, weights);
}

void TensorStore::SealState(int tile, int64_t part, std::span<const std::byte> state) {
  impl_->seals[impl_->working_slot()].SealState(tile, part, state);
}

TensorStore::Impl::PartPlace TensorStore::Impl::PlaceOf(int tile, int64_t part, int plane,
                                                        uint32_t slot) const {
  const Tile& spec = TileAt(tile);
  const int64_t elem_bytes = PlaneElemBytes(tiles.layout(), plane);
  const int64_t first = part * kSealElems;
  const int64_t begin = plane == 0 ? WeightOffset(spec, slot)
                                   : StateOffset(spec, slot) +
                                         PlaneOffsetBytes(tiles.layout(), plane, spec.num_elems);
  return {plane == 0 ? WeightsFile(spec) : StateFile(spec), plane == 0 ? kWeightsName : kStateName,
          begin + first * elem_bytes, std::min(kSealElems, spec.num_elems - first) * elem_bytes};
}

TileDamage TensorStore::Impl::DamageOf(int tile, int64_t part, int plane, uint32_t slot) const {
  const Tile& spec = TileAt(tile);
  const PartPlace place = PlaceOf(tile, part, plane, slot);
  TileDamage damage;
  damage.tile = tile;
  damage.layer = manifest.inventory.layers()[spec.layer].name;
  damage.file = JoinPath(directories[spec.stripe], place.name);
  damage.offset_bytes = place.offset_bytes;
  damage.size_bytes = place.size_bytes;
  damage.message = fmt::format(
      "'{}' (device {}) does not hold what was written there: {} bytes at {} (tile {} of layer "
      "'{}', slot {}) differ from their checksum",
      damage.file, DeviceOf(damage.file), place.size_bytes, place.offset_bytes, tile, damage.layer,
      slot == 0 ? "A" : "B");
  if (has_commit && slot == committed_slot()) {
    damage.message += fmt::format(
        " of step {}. 'forebay inspect RUN --verify' lists all that is damaged; restore the run "
        "from a copy, or start again from its last export",
        committed.step);
  }
  return damage;
}

int TensorStore::Impl::FirstBadPlane(int tile, int64_t part, int first_plane, int end_plane,
                                     std::span<const std::byte> half, uint32_t slot) const {
  for (int plane = first_plane; plane < end_plane; ++plane) {
    const auto bytes = TileSeals::PartOfPlane(tiles, tile, part, plane, half);
    if (!seals[slot].Matches(tile, part, plane, bytes)) return plane;
  }
  return -1;
}

absl::Status TensorStore::Impl::VerifyPart(int tile, int64_t part, int first_plane, int end_plane,
                                           std::span<const std::byte> half, uint32_t slot) const {
  const int bad = FirstBadPlane(tile, part, first_plane, end_plane, half, slot);
  if (bad < 0 || unfilled) return absl::OkStatus();
  return CorruptError(DamageOf(tile, part, bad, slot).message);
}

absl::Status TensorStore::Impl::Verify(int tile, int first_plane, int end_plane,
                                       std::span<const std::byte> half, uint32_t slot) const {
  for (int64_t part = 0; part < NumSealParts(TileAt(tile)); ++part) {
    FOREBAY_RETURN_IF_ERROR(VerifyPart(tile, part, first_plane, end_plane, half, slot));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::VerifyWeights(int tile, std::span<const std::byte> weights) const {
  return impl_->Verify(tile, 0, 1, weights, impl_->NewestSlot(impl_->weights_progress[tile]));
}

absl::Status TensorStore::VerifyState(int tile, std::span<const std::byte> state) const {
  return impl_->Verify(tile, 1, NumPlanes(impl_->tiles.layout()), state,
                       impl_->NewestSlot(impl_->state_progress[tile]));
}

absl::Status TensorStore::VerifyStatePart(int tile, int64_t part,
                                          std::span<const std::byte> state) const {
  return impl_->VerifyPart(tile, part, 1, NumPlanes(impl_->tiles.layout()), state,
                           impl_->NewestSlot(impl_->state_progress[tile]));
}

// ---- Scrubbing

namespace {

constexpr int kScrubTiles = 4;  // in flight, so that the disk works while tiles are hashed

struct ScrubSlot {
  std::span<std::byte> weights;
  std::span<std::byte> state;
  IoOp weights_op;
  IoOp state_op;
};

}  // namespace

// Adds what is damaged of the weights or of the state that were read into `half`, or that could not
// be read.
void TensorStore::Impl::FindDamage(int tile, int first_plane, int end_plane,
                                   const absl::Status& read, std::span<const std::byte> half,
                                   std::vector<TileDamage>& damaged) const {
  if (!read.ok()) {
    TileDamage& whole = damaged.emplace_back(DamageOf(tile, 0, first_plane, committed_slot()));
    whole.size_bytes = static_cast<int64_t>(half.size());
    whole.message = MessageOf(read);
    return;
  }
  for (int64_t part = 0; part < NumSealParts(TileAt(tile)); ++part) {
    for (int plane = first_plane; plane < end_plane; ++plane) {
      if (FirstBadPlane(tile, part, plane, plane + 1, half, committed_slot()) < 0) continue;
      damaged.push_back(DamageOf(tile, part, plane, committed_slot()));
    }
  }
}

absl::Status TensorStore::Scrub(MemoryBudget* budget, const std::function<void(int64_t)>& progress,
                                std::vector<TileDamage>& damaged) {
  FOREBAY_CHECK(has_commit());
  Impl& impl = *impl_;
  const TileMap& tiles = impl.tiles;
  const int64_t slot_bytes = tiles.max_weight_bytes() + tiles.max_state_bytes();
  FOREBAY_ASSIGN_OR_RETURN(const HostBuffer memory,
                           HostBuffer::Create(budget, "tiles to verify", kScrubTiles * slot_bytes));
  std::array<ScrubSlot, kScrubTiles> slots;
  const auto start = [&](int tile) {
    ScrubSlot& slot = slots[tile % kScrubTiles];
    const Tile& spec = tiles.tiles()[tile];
    const auto bytes = memory.bytes().subspan(static_cast<size_t>(tile % kScrubTiles * slot_bytes));
    slot.weights = bytes.first(static_cast<size_t>(tiles.WeightBytes(spec)));
    slot.state = bytes.subspan(static_cast<size_t>(tiles.max_weight_bytes()),
                               static_cast<size_t>(tiles.StateBytes(spec)));
    StartReadWeights(tile, slot.weights, IoClass::kPrefetch, slot.weights_op);
    StartReadState(tile, slot.state, IoClass::kPrefetch, slot.state_op);
  };
  int64_t done_bytes = 0;
  int num_started = 0;
  for (int tile = 0; tile < tiles.num_tiles(); ++tile) {
    for (; num_started < std::min(tile + kScrubTiles, tiles.num_tiles()); ++num_started) {
      start(num_started);
    }
    ScrubSlot& slot = slots[tile % kScrubTiles];
    impl.FindDamage(tile, 0, 1, engine().Wait(slot.weights_op), slot.weights, damaged);
    impl.FindDamage(tile, 1, NumPlanes(tiles.layout()), engine().Wait(slot.state_op), slot.state,
                    damaged);
    done_bytes += static_cast<int64_t>(slot.weights.size() + slot.state.size());
    progress(done_bytes);
  }
  return absl::OkStatus();
}

}  // namespace forebay
