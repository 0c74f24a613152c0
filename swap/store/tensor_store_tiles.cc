// Transfers of tiles, and tensors read back from committed tiles.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
namespace {

// Aligned scratch memory for one part of a plane, with what is between it and the borders of
// blocks; small enough to stay outside the budget.
struct alignas(kIoAlignBytes) PartBuffer {
  std::array<std::byte, kSealElems * 4 + 2 * kIoAlignBytes> bytes;
};
static_assert(kSealElems % kLayerAlignElems == 0);

bool IsBeingWritten(TileProgress progress) {
  return progress == TileProgress::kWriting || progress == TileProgress::kRewriting;
}

// The order of calls is checked, because a wrong one would mix two steps.
void EndWrite(std::atomic<TileProgress>& progress) {
  const TileProgress before = progress.exchange(TileProgress::kWritten, std::memory_order_acq_rel);
  FOREBAY_CHECK(IsBeingWritten(before));
}

}  // namespace

// ---- Tiles

uint32_t TensorStore::Impl::NewestSlot(const std::atomic<TileProgress>& progress) const {
  const std::lock_guard guard(slots_mutex);
  const TileProgress now = progress.load(std::memory_order_acquire);
  if (now == TileProgress::kWritten) return working_slot();
  FOREBAY_CHECK(has_commit && now != TileProgress::kRewriting);
  FOREBAY_CHECK(now == TileProgress::kCommitted || manifest.num_slots > 1);
  return committed_slot();
}

void TensorStore::Impl::BeginWrite(std::atomic<TileProgress>& progress, int64_t& written_in_round) {
  FOREBAY_CHECK(manifest.num_slots > 1 || !has_commit || record.overwriting);
  FOREBAY_CHECK(!IsRead(working_slot()));
  FOREBAY_CHECK(std::exchange(written_in_round, round) != round);
  // One thread at a time works on a tile.
  const TileProgress before = progress.load(std::memory_order_acquire);
  FOREBAY_CHECK(!IsBeingWritten(before));
  progress.store(
      before == TileProgress::kWritten ? TileProgress::kRewriting : TileProgress::kWriting,
      std::memory_order_release);
}

// Instead of a read.
void TensorStore::Impl::TakeFirstValues(int tile, std::span<std::byte> weights,
                                        std::span<std::byte> state) {
  FOREBAY_CHECK(first_values != nullptr);
  std::ranges::fill(weights, std::byte{0});
  std::ranges::fill(state, std::byte{0});
  first_values_failure.Update(first_values(tile, weights, state));
}

void TensorStore::StartReadWeights(int tile, std::span<std::byte> buffer, IoClass io_class,
                                   IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.WeightBytes(t));
  if (!impl_->on_disk.weights) return impl_->TakeFirstValues(tile, buffer, {});
  const uint32_t slot = impl_->NewestSlot(impl_->weights_progress[tile]);
  impl_->Start(op, IoKind::kRead, io_class, impl_->WeightsFile(t), impl_->WeightOffset(t, slot),
               buffer);
}

void TensorStore::StartReadState(int tile, std::span<std::byte> buffer, IoClass io_class,
                                 IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.StateBytes(t));
  if (!impl_->on_disk.state) return impl_->TakeFirstValues(tile, {}, buffer);
  const uint32_t slot = impl_->NewestSlot(impl_->state_progress[tile]);
  impl_->Start(op, IoKind::kRead, io_class, impl_->StateFile(t), impl_->StateOffset(t, slot),
               buffer);
}

void TensorStore::StartWriteWeights(int tile, std::span<std::byte> buffer, IoOp& op,
                                    Sealed sealed) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.WeightBytes(t));
  impl_->BeginWrite(impl_->weights_progress[tile], impl_->weights_round[tile]);
  if (!impl_->on_disk.weights) return;
  if (sealed == Sealed::kNotYet) impl_->seals[impl_->working_slot()].SealWeights(tile, buffer);
  impl_->Start(op, IoKind::kWrite, IoClass::kWriteBack, impl_->WeightsFile(t),
               impl_->WeightOffset(t, impl_->working_slot()), buffer);
}

void TensorStore::StartWriteState(int tile, std::span<std::byte> buffer, IoOp& op, Sealed sealed) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.StateBytes(t));
  impl_->BeginWrite(impl_->state_progress[tile], impl_->state_round[tile]);
  if (!impl_->on_disk.state) return;
  if (sealed == Sealed::kNotYet) impl_->seals[impl_->working_slot()].SealState(tile, buffer);
  impl_->Start(op, IoKind::kWrite, IoClass::kWriteBack, impl_->StateFile(t),
               impl_->StateOffset(t, impl_->working_slot()), buffer);
}

void TensorStore::MarkWeightsWritten(int tile) {
  impl_->TileAt(tile);
  EndWrite(impl_->weights_progress[tile]);
}

void TensorStore::MarkStateWritten(int tile) {
  impl_->TileAt(tile);
  EndWrite(impl_->state_progress[tile]);
}

void TensorStore::Impl::Keep(int tile, int first_plane, int end_plane,
                             std::atomic<TileProgress>& progress) {
  FOREBAY_CHECK(has_commit && tile >= 0 && tile < tiles.num_tiles());
  FOREBAY_CHECK(
      seals[working_slot()].SameChecksums(seals[committed_slot()], tile, first_plane, end_plane));
  const TileProgress before = progress.exchange(TileProgress::kWritten, std::memory_order_acq_rel);
  FOREBAY_CHECK(before == TileProgress::kCommitted);
}

void TensorStore::KeepWeights(int tile) {
  impl_->Keep(tile, 0, 1, impl_->weights_progress[tile]);
}

void TensorStore::KeepState(int tile) {
  impl_->Keep(tile, 1, impl_->NumPlanes(tile), impl_->state_progress[tile]);
}

void TensorStore::StartReadScratch(int stripe, int64_t offset_bytes, std::span<std::byte> buffer,
                                   IoOp& op) {
  impl_->StartScratch(IoKind::kRead, IoClass::kDemand, stripe, offset_bytes, buffer, op);
}

void TensorStore::StartWriteScratch(int stripe, int64_t offset_bytes, std::span<std::byte> buffer,
                                    IoOp& op) {
  impl_->StartScratch(IoKind::kWrite, IoClass::kWriteBack, stripe, offset_bytes, buffer, op);
}

void TensorStore::Impl::StartScratch(IoKind kind, IoClass io_class, int stripe,
                                     int64_t offset_bytes, std::span<std::byte> buffer, IoOp& op) {
  FOREBAY_CHECK(stripe >= 0 && stripe < tiles.num_stripes() && offset_bytes >= 0);
  FOREBAY_CHECK(offset_bytes + static_cast<int64_t>(buffer.size()) <= scratch_bytes[stripe]);
  Start(op, kind, io_class, stripes[stripe].scratch_file, offset_bytes, buffer);
}

// ---- Reading tensors

// Calls convert(tile, part, skip, count, done) for every part of a tile (tile_seals.h) in which
// elements of `tensor` lie: read it whole, as it has one checksum, and put `count` of its elements
// from `skip` on at `done` of the output.
template <typename Convert>
absl::Status TensorStore::Impl::ForEachPart(const TensorSpec& tensor, int64_t first_elem,
                                            int64_t num_elems, const Convert& convert) {
  FOREBAY_CHECK(first_elem >= 0 &&
                first_elem + num_elems <= RoundUp(tensor.num_elems, kMomentBlockElems));
  const int64_t begin = tensor.offset_elems + first_elem;
  const int64_t end = begin + num_elems;
  for (int64_t at = begin; at < end;) {
    const int index = tiles.TileAt(tensor.layer, at);
    const Tile& tile = TileAt(index);
    const int64_t part = (at - tile.first_elem) / kSealElems;
    const int64_t skip = at - tile.first_elem - part * kSealElems;
    const int64_t count = std::min(kSealElems, tile.num_elems - part * kSealElems);
    FOREBAY_RETURN_IF_ERROR(
        convert(index, part, skip, std::min(count - skip, end - at), at - begin));
    at += count - skip;
  }
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::ReadPart(int tile, int64_t part, int plane, uint32_t slot,
                                         std::span<std::byte> buffer, std::span<std::byte>& bytes) {
  const PartPlace place = PlaceOf(tile, part, plane, slot);
  const int64_t before_bytes = place.offset_bytes % kIoAlignBytes;
  const int64_t read_bytes = RoundUpToBlock(before_bytes + place.size_bytes);
  // Behind the reads of a step that goes on meanwhile.
  IoOp op;
  Start(op, IoKind::kRead, IoClass::kPrefetch, place.file, place.offset_bytes - before_bytes,
        buffer.first(static_cast<size_t>(read_bytes)));
  FOREBAY_RETURN_IF_ERROR(engine->Wait(op));
  bytes = buffer.subspan(static_cast<size_t>(before_bytes), static_cast<size_t>(place.size_bytes));
  if (unfilled || seals[slot].Matches(tile, part, plane, bytes)) return absl::OkStatus();
  return CorruptError(DamageOf(tile, part, plane, slot).message);
}

// Calls take(bytes, count, done) for `count` elements after another: their bytes in the plane, and
// how many elements came before.
template <typename Take>
absl::Status TensorStore::Impl::ReadPlane(const TensorSpec& tensor, TilePlane kind,
                                          int64_t first_elem, int64_t num_elems, uint32_t slot,
                                          const Take& take) {
  const auto buffer = std::make_unique<PartBuffer>();
  return ForEachPart(
      tensor, first_elem, num_elems,
      [&](int tile, int64_t part, int64_t skip, int64_t count, int64_t done) -> absl::Status {
        const TilePlanes& planes = tiles.PlanesOf(TileAt(tile));
        const int plane = planes.Find(kind);
        FOREBAY_CHECK(plane >= 0);
        std::span<std::byte> bytes;
        FOREBAY_RETURN_IF_ERROR(ReadPart(tile, part, plane, slot, buffer->bytes, bytes));
        take(bytes.data() + planes.Bytes(plane, skip), count, done);
        return absl::OkStatus();
      });
}

absl::Status TensorStore::ReadTensor(const TensorSpec& tensor, TensorPlane plane,
                                     int64_t first_elem, std::span<float> out) {
  FOREBAY_CHECK(impl_->has_commit && !impl_->record.overwriting);
  return impl_->ReadTensor(tensor, plane, first_elem, out, impl_->committed_slot());
}

absl::Status TensorStore::Impl::ReadTensor(const TensorSpec& tensor, TensorPlane plane,
                                           int64_t first_elem, std::span<float> out,
                                           uint32_t slot) {
  FOREBAY_CHECK(plane != TensorPlane::kW16 && plane != TensorPlane::kRaw && !tensor.raw);
  const auto num_elems = static_cast<int64_t>(out.size());
  const auto take_floats = [&](const std::byte* bytes, int64_t count, int64_t done) {
    std::memcpy(out.data() + done, bytes, static_cast<size_t>(count) * sizeof(float));
  };
  if (plane != TensorPlane::kMaster) {
    FOREBAY_CHECK(
        num_elems == 0 ||
        tiles.PlanesOf(TileAt(tiles.TileAt(tensor.layer, tensor.offset_elems))).moments() ==
            MomentFormat::kFp32);
    const TilePlane kind = plane == TensorPlane::kM ? TilePlane::kM : TilePlane::kV;
    return ReadPlane(tensor, kind, first_elem, num_elems, slot, take_floats);
  }
  const WeightFormat format = WeightFormatOf(manifest.layout);
  if (format != WeightFormat::kSplitBf16) {
    const TilePlane kind = format == WeightFormat::kFp16 ? TilePlane::kMaster : TilePlane::kWeight;
    return ReadPlane(tensor, kind, first_elem, num_elems, slot, take_floats);
  }
  FOREBAY_RETURN_IF_ERROR(ReadPlane(tensor, TilePlane::kWeight, first_elem, num_elems, slot,
                                    [&](const std::byte* bytes, int64_t count, int64_t done) {
                                      const auto* w16 = reinterpret_cast<const Bf16*>(bytes);
                                      for (int64_t i = 0; i < count; ++i)
                                        out[done + i] = Bf16ToFloat(w16[i]);
                                    }));
  return ReadPlane(tensor, TilePlane::kRemainder, first_elem, num_elems, slot,
                   [&](const std::byte* bytes, int64_t count, int64_t done) {
                     const auto* r16 = reinterpret_cast<const int16_t*>(bytes);
                     for (int64_t i = 0; i < count; ++i) {
                       out[done + i] = JoinRest(out[done + i], r16[i]);
                     }
                   });
}

absl::Status TensorStore::ReadTensorW16(const TensorSpec& tensor, int64_t first_elem,
                                        std::span<uint16_t> out) {
  FOREBAY_CHECK(impl_->has_commit && !impl_->record.overwriting);
  return impl_->ReadTensorW16(tensor, first_elem, out, impl_->committed_slot());
}

absl::Status TensorStore::Impl::ReadTensorW16(const TensorSpec& tensor, int64_t first_elem,
                                              std::span<uint16_t> out, uint32_t slot) {
  FOREBAY_CHECK(WeightFormatOf(manifest.layout) == WeightFormat::kSplitBf16 && !tensor.raw);
  return ReadPlane(tensor, TilePlane::kWeight, first_elem, static_cast<int64_t>(out.size()), slot,
                   [&](const std::byte* bytes, int64_t count, int64_t done) {
                     std::memcpy(out.data() + done, bytes, static_cast<size_t>(count) * 2);
                   });
}

absl::Status TensorStore::ReadRaw(const TensorSpec& tensor, int64_t first_byte,
                                  std::span<std::byte> out) {
  FOREBAY_CHECK(impl_->has_commit && !impl_->record.overwriting);
  return impl_->ReadRaw(tensor, first_byte, out, impl_->committed_slot());
}

absl::Status TensorStore::Impl::ReadRaw(const TensorSpec& tensor, int64_t first_byte,
                                        std::span<std::byte> out, uint32_t slot) {
  FOREBAY_CHECK(tensor.raw);
  return ReadPlane(tensor, TilePlane::kRaw, first_byte, static_cast<int64_t>(out.size()), slot,
                   [&](const std::byte* bytes, int64_t count, int64_t done) {
                     std::memcpy(out.data() + done, bytes, static_cast<size_t>(count));
                   });
}

absl::Status TensorStore::ReadTilePlane(const TensorSpec& tensor, TilePlane kind,
                                        int64_t first_elem, int64_t num_elems,
                                        std::span<std::byte> out) {
  FOREBAY_CHECK(impl_->has_commit && !impl_->record.overwriting);
  if (num_elems == 0) return absl::OkStatus();
  const TileMap& tiles = impl_->tiles;
  const TilePlanes& planes =
      tiles.PlanesOf(impl_->TileAt(tiles.TileAt(tensor.layer, tensor.offset_elems)));
  const int plane = planes.Find(kind);
  FOREBAY_CHECK(plane >= 0);
  const int64_t whole_elems =
      planes.IsScale(plane) ? RoundUp(num_elems, kMomentBlockElems) : num_elems;
  FOREBAY_CHECK(static_cast<int64_t>(out.size()) == planes.Bytes(plane, whole_elems));
  return impl_->ReadPlane(tensor, kind, first_elem, whole_elems, impl_->committed_slot(),
                          [&](const std::byte* bytes, int64_t count, int64_t done) {
                            std::memcpy(out.data() + planes.Bytes(plane, done), bytes,
                                        static_cast<size_t>(planes.Bytes(plane, count)));
                          });
}

}  // namespace forebay
