#include "forebay/offload/spilled_activations.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/base/activity.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {

StripeBytes SpilledActivationsShape::StripeShares(const StripeWeights& weights) const {
  const int64_t num_blocks = activation_bytes / kIoAlignBytes;
  const int64_t all_weights = Total(weights);
  StripeBytes shares;
  int64_t weight = 0;
  int64_t begin_block = 0;
  for (const int64_t of_stripe : weights) {
    weight += of_stripe;
    // 1 at the last stripe, exactly.
    const double share = static_cast<double>(weight) / static_cast<double>(all_weights);
    const auto end_block = static_cast<int64_t>(static_cast<double>(num_blocks) * share);
    shares.push_back((end_block - begin_block) * kIoAlignBytes);
    begin_block = end_block;
  }
  return shares;
}

StripeBytes SpilledActivationsShape::AreaBytes(const StripeWeights& weights) const {
  StripeBytes bytes = StripeShares(weights);
  for (int64_t& of_stripe : bytes) of_stripe *= num_spilled;
  return bytes;
}

SpilledActivations::SpilledActivations(const SpilledActivationsShape& shape,
                                       const StripeBytes& area_begins, TensorStore* store,
                                       ThreadPool* pool)
    : shape_(shape),
      store_(store),
      pool_(pool),
      shares_(shape.StripeShares(store->tiles().stripe_weights())) {
  int64_t offset = 0;
  for (int stripe = 0; stripe < std::ssize(shares_); ++stripe) {
    FOREBAY_CHECK(area_begins[stripe] + shape.num_spilled * shares_[stripe] <=
                  store->scratch_bytes()[stripe]);
    for (int64_t at = 0; at < shares_[stripe]; at += kMostTransferBytes) {
      const int64_t size = std::min(kMostTransferBytes, shares_[stripe] - at);
      pieces_.push_back({stripe, offset + at, size, area_begins[stripe] + at});
    }
    offset += shares_[stripe];
  }
  FOREBAY_CHECK(offset == shape.activation_bytes);
  transfers_.resize(static_cast<size_t>(shape.num_buffers));
  ops_ = std::vector<IoOp>(static_cast<size_t>(shape.num_buffers) * pieces_.size());
  seals_.resize(static_cast<size_t>(shape.num_spilled) * pieces_.size());
  checksums_.resize(pieces_.size());
  is_written_.resize(static_cast<size_t>(shape.num_spilled));
}

absl::StatusOr<std::unique_ptr<SpilledActivations>> SpilledActivations::Create(
    const SpilledActivationsShape& shape, StripeBytes area_begins, TensorStore* store,
    MemoryBudget* budget, ThreadPool* pool, Device* device) {
  std::unique_ptr<SpilledActivations> activations(
      new SpilledActivations(shape, area_begins, store, pool));
  FOREBAY_ASSIGN_OR_RETURN(activations->memory_,
                           TransferBuffer::Create(store, budget, "activation checkpoints",
                                                  shape.MemoryBytes(), kIoAlignBytes, device));
  return activations;
}

SpilledActivations::~SpilledActivations() {
  Abandon();
}

std::span<std::byte> SpilledActivations::BytesOf(int layer, const Piece& piece) const {
  return memory_.bytes().subspan(
      layer % shape_.num_buffers * shape_.activation_bytes + piece.offset_bytes, piece.size_bytes);
}

void SpilledActivations::Start(IoKind kind, int layer) {
  FOREBAY_CHECK(layer >= 0 && layer < shape_.num_spilled);
  Transfer& transfer = transfers_[layer % shape_.num_buffers];
  FOREBAY_CHECK(transfer.layer < 0);
  FOREBAY_CHECK((kind == IoKind::kRead) == (is_written_[layer] != 0));
  transfer = {kind, layer};
  is_written_[layer] = kind == IoKind::kWrite ? 1 : 0;
  if (kind == IoKind::kWrite) TakeChecksums(layer, SealsOf(layer));
  const std::span<IoOp> ops = OpsOf(layer);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const auto start =
        kind == IoKind::kWrite ? &TensorStore::StartWriteScratch : &TensorStore::StartReadScratch;
    (store_->*start)(piece.stripe, AreaOffset(layer, piece), BytesOf(layer, piece), ops[i]);
  }
}

void SpilledActivations::TakeChecksums(int layer, std::span<uint64_t> checksums) const {
  pool_->ParallelFor(std::ssize(pieces_),
                     [&](int64_t i) { checksums[i] = Xxh3_64(BytesOf(layer, pieces_[i])); });
}

absl::Status SpilledActivations::Await(int layer) {
  if (layer < 0 || transfers_[layer % shape_.num_buffers].layer != layer) return absl::OkStatus();
  const Stopwatch watch;
  const TraceScope trace(Activity::kActivations);
  const IoKind kind = transfers_[layer % shape_.num_buffers].kind;
  transfers_[layer % shape_.num_buffers].layer = -1;
  absl::Status status;
  for (IoOp& op : OpsOf(layer)) status.Update(store_->engine().Wait(op));
  wait_s_ += watch.Seconds();
  if (!status.ok()) {
    return Annotate(
        status, fmt::format("{} the activation of layer '{}', which waits on disk for the backward "
                            "pass, failed",
                            kind == IoKind::kWrite ? "writing" : "reading",
                            store_->inventory().layers()[layer].name));
  }
  return kind == IoKind::kRead ? Verify(layer) : absl::OkStatus();
}

absl::Status SpilledActivations::Verify(int layer) {
  if (store_->unfilled()) return absl::OkStatus();
  TakeChecksums(layer, checksums_);
  const auto [sealed, damaged] = std::ranges::mismatch(SealsOf(layer), checksums_);
  if (damaged == checksums_.end()) return absl::OkStatus();
  const Piece& piece = pieces_[damaged - checksums_.begin()];
  const std::string file = JoinPath(store_->directories()[piece.stripe], kScratchName);
  return CorruptError(fmt::format(
      "'{}' (device {}) does not hold what was written there: {} bytes at {} (activation of layer "
      "'{}') differ from their checksum. The last committed step is not touched by that: look at "
      "'dmesg' and the drive's health (smartctl -a), then resume",
      file, DeviceNameOf(file), piece.size_bytes, AreaOffset(layer, piece),
      store_->inventory().layers()[layer].name));
}

void SpilledActivations::Abandon() {
  for (IoOp& op : ops_) store_->engine().Wait(op).IgnoreError();
  for (Transfer& transfer : transfers_) transfer.layer = -1;
  std::ranges::fill(is_written_, 0);
}

}  // namespace forebay
