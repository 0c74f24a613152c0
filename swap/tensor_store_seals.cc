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
                  "without its checksums it cannot be said whether the store is whole. 'forebay "
                  "inspect RUN --repair' goes back to the step before where that is whole; else "
                  "restore it from a copy, or start again from the last exported model");
}

int64_t TensorStore::SealBytes(const TileMap& tiles, int num_slots) {
  int64_t bytes = 0;
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    bytes += num_slots * TileSeals::TableBytes(tiles, stripe);
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
        " of step {}. 'forebay inspect RUN --verify' lists all that is damaged{}; else restore the "
        "run "
        "from a copy, or start again from its last export",
        committed.step,
        manifest.num_slots > 1 ? ", and --repair goes back to the step before where that is whole"
                               : "");
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

}  // namespace forebay
