// Transfers of tiles, and tensors read back from committed tiles.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/swap/tensor_store_impl.h"

namespace forebay {
namespace {

// Aligned scratch memory for one chunk of a tensor that is read; small enough to stay outside the
// budget.
constexpr int64_t kChunkElems = int64_t{32} << 10;
struct alignas(kIoAlignBytes) ChunkBuffer {
  std::array<std::byte, kChunkElems * 4> bytes;
};
static_assert(kChunkElems % kLayerAlignElems == 0);

// Moves to `to`; the state before is checked, because a wrong order of calls would mix two steps.
void Advance(std::atomic<TileProgress>& progress, TileProgress from, TileProgress to) {
  FOREBAY_CHECK(progress.compare_exchange_strong(from, to, std::memory_order_acq_rel));
}

}  // namespace

// ---- Tiles

uint32_t TensorStore::Impl::NewestSlot(const std::atomic<TileProgress>& progress) const {
  const std::lock_guard guard(slots_mutex);
  if (progress.load(std::memory_order_acquire) == TileProgress::kWritten) return working_slot();
  FOREBAY_CHECK(has_commit);
  return committed_slot();
}

void TensorStore::StartReadWeights(int tile, std::span<std::byte> buffer, IoClass io_class,
                                   IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.WeightBytes(t));
  const uint32_t slot = impl_->NewestSlot(impl_->weights_progress[tile]);
  impl_->Start(op, IoKind::kRead, io_class, impl_->WeightsFile(t), impl_->WeightOffset(t, slot),
               buffer);
}

void TensorStore::StartReadState(int tile, std::span<std::byte> buffer, IoClass io_class,
                                 IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.StateBytes(t));
  const uint32_t slot = impl_->NewestSlot(impl_->state_progress[tile]);
  impl_->Start(op, IoKind::kRead, io_class, impl_->StateFile(t), impl_->StateOffset(t, slot),
               buffer);
}

void TensorStore::StartWriteWeights(int tile, std::span<std::byte> buffer, IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.WeightBytes(t));
  Advance(impl_->weights_progress[tile], TileProgress::kCommitted, TileProgress::kWriting);
  impl_->Start(op, IoKind::kWrite, IoClass::kWriteBack, impl_->WeightsFile(t),
               impl_->WeightOffset(t, impl_->working_slot()), buffer);
}

void TensorStore::StartWriteState(int tile, std::span<std::byte> buffer, IoOp& op) {
  const Tile& t = impl_->TileAt(tile);
  FOREBAY_CHECK(static_cast<int64_t>(buffer.size()) == impl_->tiles.StateBytes(t));
  Advance(impl_->state_progress[tile], TileProgress::kCommitted, TileProgress::kWriting);
  impl_->Start(op, IoKind::kWrite, IoClass::kWriteBack, impl_->StateFile(t),
               impl_->StateOffset(t, impl_->working_slot()), buffer);
}

void TensorStore::MarkWeightsWritten(int tile) {
  impl_->TileAt(tile);
  Advance(impl_->weights_progress[tile], TileProgress::kWriting, TileProgress::kWritten);
}

void TensorStore::MarkStateWritten(int tile) {
  impl_->TileAt(tile);
  Advance(impl_->state_progress[tile], TileProgress::kWriting, TileProgress::kWritten);
}

void TensorStore::StartReadGradient(int stripe, int64_t offset_bytes, std::span<std::byte> buffer,
                                    IoOp& op) {
  impl_->StartGradient(IoKind::kRead, IoClass::kDemandRead, stripe, offset_bytes, buffer, op);
}

void TensorStore::StartWriteGradient(int stripe, int64_t offset_bytes, std::span<std::byte> buffer,
                                     IoOp& op) {
  impl_->StartGradient(IoKind::kWrite, IoClass::kWriteBack, stripe, offset_bytes, buffer, op);
}

void TensorStore::Impl::StartGradient(IoKind kind, IoClass io_class, int stripe,
                                      int64_t offset_bytes, std::span<std::byte> buffer, IoOp& op) {
  FOREBAY_CHECK(stripe >= 0 && stripe < tiles.num_stripes() && offset_bytes >= 0);
  FOREBAY_CHECK(offset_bytes + static_cast<int64_t>(buffer.size()) <= gradient_area_bytes[stripe]);
  Start(op, kind, io_class, stripes[stripe].gradients_file, offset_bytes, buffer);
}

// ---- Reading tensors

// Cuts `tensor` into pieces of at most kChunkElems that lie within one tile, and calls
// convert(tile, first, count, skip, done): read elements [first, first + count) of the tile,
// `first` and `count` multiples of kLayerAlignElems, and put all but the first `skip` of them at
// `done` of the output, as far as the tensor reaches.
template <typename Convert>
absl::Status TensorStore::Impl::ForEachChunk(const TensorSpec& tensor, int64_t first_elem,
                                             int64_t num_elems, const Convert& convert) {
  FOREBAY_CHECK(has_commit);
  FOREBAY_CHECK(first_elem >= 0 && first_elem + num_elems <= tensor.num_elems);
  const int64_t begin = tensor.offset_elems + first_elem;
  const int64_t end = begin + num_elems;
  for (int64_t at = begin; at < end;) {
    const auto index = static_cast<int>(at / tiles.tile_elems());
    const Tile& tile = TileAt(tiles.first_tile(tensor.layer) + index);
    const int64_t first = (at - tile.first_elem) / kLayerAlignElems * kLayerAlignElems;
    const int64_t count = std::min(kChunkElems, tile.num_elems - first);
    const int64_t skip = at - tile.first_elem - first;
    FOREBAY_RETURN_IF_ERROR(convert(tile, first, count, skip, at - begin));
    at += count - skip;
  }
  return absl::OkStatus();
}

absl::Status TensorStore::ReadTensor(const TensorSpec& tensor, Plane plane, int64_t first_elem,
                                     std::span<float> out) {
  const auto num_elems = static_cast<int64_t>(out.size());
  Impl& impl = *impl_;
  const bool joined = plane == Plane::kMaster && impl.manifest.layout == Layout::kBf16;
  const auto high = std::make_unique<ChunkBuffer>();
  const auto low = joined ? std::make_unique<ChunkBuffer>() : nullptr;
  const auto convert = [&](const Tile& tile, int64_t first, int64_t count, int64_t skip,
                           int64_t done) -> absl::Status {
    const StatePlanes planes = PlanesOf(impl.manifest.layout, tile.num_elems);
    const int64_t elem_bytes = joined ? 2 : 4;
    const auto read = [&](int file, int64_t offset_bytes, ChunkBuffer& buffer) {
      return impl.RunOp(IoKind::kRead, file, offset_bytes + first * elem_bytes,
                        std::span(buffer.bytes).first(static_cast<size_t>(count * elem_bytes)));
    };
    const int64_t state = impl.StateOffset(tile, impl.committed_slot());
    const int64_t num_out = std::min(count - skip, num_elems - done);
    if (plane == Plane::kMaster) {
      FOREBAY_RETURN_IF_ERROR(
          read(impl.WeightsFile(tile), impl.WeightOffset(tile, impl.committed_slot()), *high));
    } else {
      FOREBAY_RETURN_IF_ERROR(
          read(impl.StateFile(tile), state + (plane == Plane::kM ? planes.m : planes.v), *high));
    }
    if (!joined) {
      std::memcpy(out.data() + done, high->bytes.data() + skip * 4,
                  static_cast<size_t>(num_out) * 4);
      return absl::OkStatus();
    }
    FOREBAY_RETURN_IF_ERROR(read(impl.StateFile(tile), state + planes.remainder, *low));
    const auto* w16 = reinterpret_cast<const Bf16*>(high->bytes.data()) + skip;
    const auto* r16 = reinterpret_cast<const int16_t*>(low->bytes.data()) + skip;
    for (int64_t i = 0; i < num_out; ++i) out[done + i] = Join(w16[i], r16[i]);
    return absl::OkStatus();
  };
  return impl.ForEachChunk(tensor, first_elem, num_elems, convert);
}

absl::Status TensorStore::ReadTensorW16(const TensorSpec& tensor, int64_t first_elem,
                                        std::span<uint16_t> out) {
  const auto num_elems = static_cast<int64_t>(out.size());
  FOREBAY_CHECK(impl_->manifest.layout == Layout::kBf16);
  Impl& impl = *impl_;
  const auto buffer = std::make_unique<ChunkBuffer>();
  return impl.ForEachChunk(tensor, first_elem, num_elems,
                           [&](const Tile& tile, int64_t first, int64_t count, int64_t skip,
                               int64_t done) -> absl::Status {
                             FOREBAY_RETURN_IF_ERROR(impl.RunOp(
                                 IoKind::kRead, impl.WeightsFile(tile),
                                 impl.WeightOffset(tile, impl.committed_slot()) + first * 2,
                                 std::span(buffer->bytes).first(static_cast<size_t>(count * 2))));
                             const int64_t num_out = std::min(count - skip, num_elems - done);
                             std::memcpy(out.data() + done, buffer->bytes.data() + skip * 2,
                                         static_cast<size_t>(num_out) * 2);
                             return absl::OkStatus();
                           });
}

}  // namespace forebay
