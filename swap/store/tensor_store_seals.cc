// The checksums of the store: on disk, and compared with what is read (docs/formats.md,
// "seals.fbs").
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {

// ---- Tables

// Both copies of every stripe's table, side by side. Made durable with the data (FlushData).
absl::Status TensorStore::Impl::WriteSeals(uint32_t slot) {
  if (!on_disk.records) return absl::OkStatus();
  std::vector<IoOp> ops(2 * stripes.size());
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    const std::span<std::byte> table = seals[slot].table(stripe);
    if (table.empty()) continue;
    for (const int copy : {0, 1}) {
      Start(ops[2 * static_cast<size_t>(stripe) + static_cast<size_t>(copy)], IoKind::kWrite,
            IoClass::kDemand, stripes[stripe].seals_files[copy], TableOffset(stripe, slot), table);
    }
  }
  absl::Status status;
  for (IoOp& op : ops) status.Update(engine->Wait(op));
  return status;
}

// A table stands for the tiles of its own record, and of later ones that changed none: those have
// its root.
absl::Status TensorStore::Impl::ReadTableCopy(int stripe, uint32_t slot, int copy) {
  const std::string source = SealsPath(stripe, copy);
  FOREBAY_RETURN_IF_ERROR(ReadPatiently(stripes[stripe].seals_files[copy],
                                        TableOffset(stripe, slot), seals[slot].table(stripe)));
  FOREBAY_RETURN_IF_ERROR(seals[slot].CheckTable(stripe, source));
  const auto head = DecodeCommitRecord(seals[slot].record(stripe), source);
  if (head.ok() && HaveSameTiles(head->record, record)) return absl::OkStatus();
  return CorruptError(fmt::format(
      "the checksums in '{}' (slot {}) are of another step than the commit record, step {}", source,
      slot == 0 ? "A" : "B", record.step));
}

// A copy that is whole and goes with the record. The other one is read too, and written anew where
// it is damaged or cannot be read, so that two are there whatever happens next.
absl::Status TensorStore::Impl::ReadTable(int stripe, uint32_t slot) {
  const absl::Status second = ReadTableCopy(stripe, slot, 1);
  const absl::Status first = ReadTableCopy(stripe, slot, 0);
  if (first.ok()) return second.ok() ? absl::OkStatus() : RepairTable(stripe, slot, 1);
  if (!second.ok()) return first;
  FOREBAY_RETURN_IF_ERROR(ReadTableCopy(stripe, slot, 1));
  return RepairTable(stripe, slot, 0);
}

absl::Status TensorStore::Impl::RepairTable(int stripe, uint32_t slot, int copy) {
  const int file = stripes[stripe].seals_files[copy];
  if (file >= 0 && !IsRemade(file)) {
    NoteMended(fmt::format("the checksums of slot {} in '{}' could not be read or were damaged",
                           slot == 0 ? "A" : "B", SealsPath(stripe, copy)));
  }
  if (access != StoreAccess::kReadWrite) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(
      RunOp(IoKind::kWrite, file, TableOffset(stripe, slot), seals[slot].table(stripe)));
  return Flush(std::array{file});
}

// Gives a file that was made anew the other slot's table too, where its copy has it. A repair may
// go back to that slot.
absl::Status TensorStore::Impl::RestoreTables() {
  const uint32_t other = working_slot();
  for (int stripe = 0; stripe < tiles.num_stripes() && manifest.num_slots > 1; ++stripe) {
    for (const int copy : {0, 1}) {
      if (!IsRemade(stripes[stripe].seals_files[copy])) continue;
      const absl::Status read =
          ReadPatiently(stripes[stripe].seals_files[1 - copy], TableOffset(stripe, other),
                        seals[other].table(stripe));
      const std::string source = SealsPath(stripe, 1 - copy);
      if (!read.ok() || !seals[other].CheckTable(stripe, source).ok()) continue;
      FOREBAY_RETURN_IF_ERROR(RepairTable(stripe, other, copy));
    }
  }
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::ReadSeals(uint32_t slot) {
  absl::Status status;
  for (int stripe = 0; stripe < tiles.num_stripes() && status.ok(); ++stripe) {
    if (!seals[slot].table(stripe).empty()) status = ReadTable(stripe, slot);
  }
  if (status.ok() && seals[slot].RootOfTables() != record.seals_root) {
    std::vector<std::string> table_files;
    for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
      if (seals[slot].table(stripe).empty()) continue;
      table_files.push_back(JoinPath(directories[stripe], kSealsName));
    }
    status = CorruptError(fmt::format(
        "the checksums in {} do not belong to the commit of step {}: a write was lost or landed in "
        "the wrong place",
        QuotedList(table_files), record.step));
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
  if (!impl_->on_disk.weights) return;
  impl_->seals[impl_->working_slot()].SealWeights(tile, part, weights);
}

void TensorStore::SealState(int tile, int64_t part, std::span<const std::byte> state) {
  if (!impl_->on_disk.state) return;
  impl_->seals[impl_->working_slot()].SealState(tile, part, state);
}

TensorStore::Impl::PartPlace TensorStore::Impl::PlaceOf(int tile, int64_t part, int plane,
                                                        uint32_t slot) const {
  const Tile& spec = TileAt(tile);
  const PartInHalf in_half = PlaceOfPart(tiles, spec, part, plane);
  const int64_t begin = plane == 0 ? WeightOffset(spec, slot) : StateOffset(spec, slot);
  return {plane == 0 ? WeightsFile(spec) : StateFile(spec), plane == 0 ? kWeightsName : kStateName,
          begin + in_half.offset_bytes, in_half.size_bytes};
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
      damage.file, DeviceNameOf(damage.file), place.size_bytes, place.offset_bytes, tile,
      damage.layer, slot == 0 ? "A" : "B");
  // What reads a tile may run beside a commit.
  std::optional<int64_t> committed_step;
  {
    const std::lock_guard guard(slots_mutex);
    if (has_commit && slot == committed_slot()) committed_step = committed.step;
  }
  if (committed_step.has_value()) {
    damage.message += fmt::format(
        " of step {}. 'forebay inspect RUN --verify' lists all that is damaged{}; else restore "
        "the run from a copy, or start again from its last export",
        *committed_step,
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
  if (!(first_plane == 0 ? on_disk.weights : on_disk.state)) return first_values_failure;
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
  return impl_->Verify(tile, 1, impl_->NumPlanes(tile), state,
                       impl_->NewestSlot(impl_->state_progress[tile]));
}

absl::Status TensorStore::VerifyWeightsPart(int tile, int64_t part,
                                            std::span<const std::byte> weights) const {
  return impl_->VerifyPart(tile, part, 0, 1, weights,
                           impl_->NewestSlot(impl_->weights_progress[tile]));
}

absl::Status TensorStore::VerifyStatePart(int tile, int64_t part,
                                          std::span<const std::byte> state) const {
  return impl_->VerifyPart(tile, part, 1, impl_->NumPlanes(tile), state,
                           impl_->NewestSlot(impl_->state_progress[tile]));
}

}  // namespace forebay
