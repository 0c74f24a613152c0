#include "forebay/offload/ranks/gradient_sum.h"

#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/device/stream_trace.h"

namespace forebay {

GradientSum::GradientSum(const Inventory* inventory, const InventoryParts* parts,
                         Communicator* ranks, const Options& options)
    : inventory_(inventory),
      parts_(parts),
      ranks_(ranks),
      wire_(options.wire),
      bounds_of_all_(2),
      offsets_(static_cast<size_t>(num_owners()) + 1) {
  if (!options.tensors_may_lack) return;
  size_t most_tensors = 0;
  for (const LayerSpec& layer : inventory->layers()) {
    most_tensors = std::max(most_tensors, static_cast<size_t>(layer.num_tensors));
  }
  num_with_.resize(most_tensors);
  missing_.reserve(most_tensors);
}

absl::StatusOr<std::unique_ptr<GradientSum>> GradientSum::Create(const Inventory* inventory,
                                                                 const InventoryParts* parts,
                                                                 Communicator* ranks,
                                                                 MemoryBudget* budget,
                                                                 const Options& options) {
  std::unique_ptr<GradientSum> sum(new GradientSum(inventory, parts, ranks, options));
  FOREBAY_RETURN_IF_ERROR(sum->MakeSlots(budget, options));
  return sum;
}

absl::Status GradientSum::MakeSlots(MemoryBudget* budget, const Options& options) {
  const int64_t slot_elems = SlotElems(*inventory_, ranks_->size(), options.bucket_bytes);
  FOREBAY_ASSIGN_OR_RETURN(buffer_,
                           HostBuffer::Create(budget, "sum of gradients over ranks",
                                              kNumSlots * slot_elems * int64_t{sizeof(float)},
                                              {.device = options.device}));
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].elems = buffer_.As<float>().subspan(i * static_cast<size_t>(slot_elems),
                                                  static_cast<size_t>(slot_elems));
    if (options.device == nullptr) continue;
    FOREBAY_ASSIGN_OR_RETURN(slots_[i].has_landed, options.device->CreateEvent());
  }
  if (options.device == nullptr) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(stream_,
                           CreateTracedStream(options.device, "gradients to the sum of ranks"));
  return absl::OkStatus();
}

GradientSum::~GradientSum() {
  Drop();
}

// As many blocks of each rank: parts of a norm are whole blocks then, and an all-reduce of pieces
// moves as many bytes as one of the layer.
int64_t GradientSum::SlotElems(const Inventory& inventory, int num_ranks, int64_t bucket_bytes) {
  const int64_t block_of_ranks = num_ranks * kLayerAlignElems;
  const int64_t block_of_slots = kNumSlots * block_of_ranks;
  const int64_t most_bytes = bucket_bytes == 0 ? kAutoBucketBytes : bucket_bytes;
  const int64_t fit = most_bytes / int64_t{sizeof(float)} / block_of_slots;
  const int64_t needed = (inventory.largest_layer_elems() + block_of_slots - 1) / block_of_slots;
  return std::max<int64_t>(1, std::min(fit, needed)) * block_of_ranks;
}

int64_t GradientSum::ChargedBytes(const Inventory& inventory, int num_ranks, int64_t bucket_bytes) {
  return HostBuffer::ChargedBytes(kNumSlots * SlotElems(inventory, num_ranks, bucket_bytes) *
                                  int64_t{sizeof(float)});
}

std::span<const int64_t> GradientSum::BoundsOf(int layer) const {
  return parts_ == nullptr ? std::span(bounds_of_all_) : parts_->Offsets(layer);
}

GradientSum::Range GradientSum::RangeOf(int owner, int64_t piece) const {
  const std::span<const int64_t> bounds =
      BoundsOf(gradient_.layer).subspan(static_cast<size_t>(owner), 2);
  const int64_t per_piece = std::ssize(slots_[0].elems) / num_owners();
  return {std::min(bounds[1], bounds[0] + piece * per_piece),
          std::min(bounds[1], bounds[0] + (piece + 1) * per_piece)};
}

absl::Status GradientSum::Start(const LayerGradient& gradient) {
  FOREBAY_CHECK(!IsUnderWay() && gradient.first_elem == 0 && gradient.dtype == DType::kF32);
  if (gradient.device == DeviceKind::kHost) {
    if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(gradient.ready->Await());
  } else {
    FOREBAY_CHECK(stream_ != nullptr);
    if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*gradient.ready));
  }
  gradient_ = gradient;
  if (num_with_.empty()) {
    FOREBAY_CHECK(gradient.missing.empty());
  } else {
    StartCount();
  }
  bounds_of_all_[1] = gradient.num_elems();
  num_awaited_ = num_started_ = 0;
  num_pieces_ = 1;
  for (int owner = 0; owner < num_owners(); ++owner) {
    while (RangeOf(owner, num_pieces_).num_elems() > 0) ++num_pieces_;
  }
  return StartPieces();
}

// The slot of the piece that was awaited last is free: it has been handed on.
absl::Status GradientSum::StartPieces() {
  if (!NeedsGradient()) return absl::OkStatus();
  const TraceScope trace("gradient to be summed over ranks");
  while (NeedsGradient() && num_started_ < num_awaited_ + kNumSlots) {
    FOREBAY_RETURN_IF_ERROR(StartPiece(num_started_));
    ++num_started_;
  }
  if (NeedsGradient() || gradient_.taken == nullptr) return absl::OkStatus();
  return gradient_.device == DeviceKind::kHost ? absl::OkStatus()
                                               : stream_->Record(*gradient_.taken);
}

absl::Status GradientSum::StartPiece(int64_t piece) {
  Slot& slot = SlotOf(piece);
  for (int owner = 0; owner < num_owners(); ++owner) {
    const Range range = RangeOf(owner, piece);
    const auto first = static_cast<size_t>(offsets_[owner]);
    const auto size = static_cast<size_t>(range.num_elems());
    FOREBAY_RETURN_IF_ERROR(
        Bring(gradient_.floats().subspan(static_cast<size_t>(range.begin), size),
              slot.elems.subspan(first, size)));
    offsets_[owner + 1] = offsets_[owner] + range.num_elems();
  }
  CollectiveMemory memory = OnHost(slot.elems.first(static_cast<size_t>(offsets_.back())));
  memory.layer = gradient_.layer;
  memory.wire = wire_;
  if (gradient_.device != DeviceKind::kHost) {
    FOREBAY_RETURN_IF_ERROR(stream_->Record(*slot.has_landed));
    memory.ready = slot.has_landed.get();
  }
  slot.ticket = parts_ == nullptr ? ranks_->StartAllReduce(memory)
                                  : ranks_->StartReduceScatter(memory, offsets_);
  return absl::OkStatus();
}

// From a device, which goes on meanwhile: the communicator waits for it.
absl::Status GradientSum::Bring(std::span<const float> from, std::span<float> to) {
  if (from.empty()) return absl::OkStatus();
  if (gradient_.device != DeviceKind::kHost) {
    const StreamScope scope(*stream_, "gradient", {.layer = gradient_.layer},
                            static_cast<int64_t>(to.size_bytes()));
    return stream_->CopyToHost(std::as_writable_bytes(to), from.data());
  }
  std::ranges::copy(from, to.begin());
  return absl::OkStatus();
}

void GradientSum::StartCount() {
  const LayerSpec& spec = inventory_->layers()[gradient_.layer];
  const std::span<float> own = std::span(num_with_).first(static_cast<size_t>(spec.num_tensors));
  std::ranges::fill(own, 1.0f);
  for (const int tensor : gradient_.missing) {
    own[static_cast<size_t>(tensor - spec.first_tensor)] = 0.0f;
  }
  CollectiveMemory memory = OnHost(own);
  memory.layer = gradient_.layer;
  count_ticket_ = ranks_->StartAllReduce(memory);
}

absl::Status GradientSum::AwaitCount(int layer) {
  missing_.clear();
  if (num_with_.empty()) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(ranks_->Await(count_ticket_));
  const LayerSpec& spec = inventory_->layers()[layer];
  for (int i = 0; i < spec.num_tensors; ++i) {
    if (num_with_[static_cast<size_t>(i)] == 0) missing_.push_back(spec.first_tensor + i);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerGradient> GradientSum::Await() {
  FOREBAY_CHECK(IsUnderWay());
  FOREBAY_RETURN_IF_ERROR(StartPieces());
  if (num_awaited_ == 0) FOREBAY_RETURN_IF_ERROR(AwaitCount(gradient_.layer));
  const Slot& slot = SlotOf(num_awaited_);
  FOREBAY_RETURN_IF_ERROR(ranks_->Await(slot.ticket));
  int64_t first_in_slot = 0;
  for (int owner = 0; owner < own(); ++owner) {
    first_in_slot += RangeOf(owner, num_awaited_).num_elems();
  }
  const Range range = RangeOf(own(), num_awaited_);
  ++num_awaited_;
  return Fp32Gradient(gradient_.layer,
                      slot.elems.subspan(static_cast<size_t>(first_in_slot),
                                         static_cast<size_t>(range.num_elems())),
                      range.begin - BoundsOf(gradient_.layer)[static_cast<size_t>(own())],
                      missing_);
}

void GradientSum::Drop() {
  // An error is that of every later call.
  if (IsUnderWay() && !num_with_.empty()) ranks_->Await(count_ticket_).IgnoreError();
  for (; num_awaited_ < num_started_; ++num_awaited_) {
    ranks_->Await(SlotOf(num_awaited_).ticket).IgnoreError();
  }
  num_pieces_ = num_started_ = num_awaited_ = 0;
}

}  // namespace forebay
