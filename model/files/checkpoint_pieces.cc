#include "forebay/model/files/checkpoint_pieces.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"

namespace forebay {
namespace {

CheckpointStream::Options StreamOptions(const CheckpointPieces::Options& options) {
  return {options.dtype, options.piece_elems * SizeOf(options.dtype), options.converts};
}

// With room for a shift, as pieces are read to their places.
int64_t SlotBytes(const CheckpointPieces::Options& options) {
  return RoundUp(options.piece_elems * SizeOf(options.dtype), kIoAlignBytes) + kIoAlignBytes;
}

int NumPieces(int64_t num_elems, int64_t piece_elems) {
  return static_cast<int>((num_elems + piece_elems - 1) / piece_elems);
}

// The parts as far as they lie in [first, end) of the layer's vector, by the elements of that.
std::vector<CheckpointStream::Part> PartsWithin(const std::vector<CheckpointStream::Part>& parts,
                                                int64_t first, int64_t end) {
  std::vector<CheckpointStream::Part> within;
  for (CheckpointStream::Part part : parts) {
    const int64_t begin_elem = std::max(first, part.offset_elems);
    const int64_t end_elem = std::min(end, part.offset_elems + part.num_elems);
    if (begin_elem >= end_elem) continue;
    part.first_elem += begin_elem - part.offset_elems;
    part.offset_elems = begin_elem - first;
    part.num_elems = end_elem - begin_elem;
    within.push_back(part);
  }
  return within;
}

int64_t FileBytesOf(const CheckpointStream::Part& part) {
  const SafetensorsEntry& entry = part.source->entry;
  return part.num_elems * ((entry.end_bytes - entry.begin_bytes) / NumElems(entry.shape));
}

}  // namespace

int64_t CheckpointPieces::BytesOf(const Options& options) {
  return kPiecesOfBuffer * SlotBytes(options);
}

int64_t CheckpointPieces::StagingBytes(const Options& options) {
  return CheckpointStream::StagingBytes(StreamOptions(options));
}

absl::StatusOr<std::unique_ptr<CheckpointPieces>> CheckpointPieces::Create(
    const CheckpointReader& reader, const std::vector<Layer>& layers, const Options& options,
    std::span<std::byte> memory, MemoryBudget* budget) {
  FOREBAY_CHECK(std::ssize(memory) >= BytesOf(options));
  std::unique_ptr<CheckpointPieces> pieces(new CheckpointPieces(options, memory));
  pieces->layers_ = layers;
  for (const Layer& layer : layers) {
    for (int64_t first = 0; first < layer.num_elems; first += options.piece_elems) {
      const int64_t end = std::min(layer.num_elems, first + options.piece_elems);
      pieces->parts_.push_back(PartsWithin(layer.parts, first, end));
    }
  }
  FOREBAY_ASSIGN_OR_RETURN(
      pieces->stream_,
      CheckpointStream::Create(reader, pieces->parts_, StreamOptions(options), budget));
  return pieces;
}

void CheckpointPieces::Start(int layer) {
  Drop();
  last_ = -1;
  first_in_stream_ = 0;
  for (const Layer& each : layers_) {
    num_elems_ = each.num_elems;
    num_pieces_ = NumPieces(num_elems_, options_.piece_elems);
    if (each.layer == layer) return;
    first_in_stream_ += num_pieces_;
  }
  FOREBAY_CHECK(false);  // it is lent whole
}

void CheckpointPieces::DropSlot(int slot) {
  const int piece = std::exchange(reading_[static_cast<size_t>(slot)], -1);
  if (piece >= 0) stream_->Drop(InStream(piece));
  held_.Drop(slot);
}

void CheckpointPieces::Drop() {
  for (int slot = 0; slot < kPiecesOfBuffer; ++slot) DropSlot(slot);
}

int64_t CheckpointPieces::ElemsOf(int piece) const {
  return std::min(options_.piece_elems, num_elems_ - piece * options_.piece_elems);
}

std::span<std::byte> CheckpointPieces::MemoryOf(int piece) const {
  const int64_t begin = HeldPieces::SlotOf(piece) * SlotBytes(options_);
  return memory_.subspan(static_cast<size_t>(begin + stream_->ShiftBytes(InStream(piece))),
                         static_cast<size_t>(ElemsOf(piece) * SizeOf(options_.dtype)));
}

void CheckpointPieces::StartRead(int piece) {
  if (held_.Holds(piece)) return;
  const int slot = HeldPieces::SlotOf(piece);
  DropSlot(slot);
  held_.Take(piece);
  reading_[static_cast<size_t>(slot)] = piece;
  stream_->Start(InStream(piece), MemoryOf(piece));
}

absl::Status CheckpointPieces::FinishRead(int piece) {
  const auto slot = static_cast<size_t>(HeldPieces::SlotOf(piece));
  if (reading_[slot] != piece) return absl::OkStatus();
  // Zeros between the tensors and behind them.
  const std::span<std::byte> memory = MemoryOf(piece);
  const int64_t elem_bytes = SizeOf(options_.dtype);
  int64_t end = 0;
  const auto fill_gap = [&](int64_t until) {
    std::memset(memory.data() + end * elem_bytes, 0,
                static_cast<size_t>((until - end) * elem_bytes));
  };
  for (const CheckpointStream::Part& part : parts_[static_cast<size_t>(InStream(piece))]) {
    fill_gap(part.offset_elems);
    end = part.offset_elems + part.num_elems;
    read_bytes_ += FileBytesOf(part);
  }
  fill_gap(ElemsOf(piece));
  failure_ = stream_->Finish(InStream(piece));
  if (failure_.ok()) reading_[slot] = -1;
  return failure_;
}

absl::StatusOr<LayerWeights> CheckpointPieces::Get(int piece) {
  FOREBAY_CHECK(piece >= 0 && piece < num_pieces_);
  FOREBAY_RETURN_IF_ERROR(failure_);
  StartRead(piece);
  FOREBAY_RETURN_IF_ERROR(FinishRead(piece));
  // Tokens need single pieces of the embedding, logits all of them in turn.
  const bool is_in_turn = piece == 0 || piece == last_ + 1;
  if (is_in_turn && piece + 1 < num_pieces_) StartRead(piece + 1);
  last_ = piece;
  return LayerWeights{
      .dtype = options_.dtype, .data = MemoryOf(piece), .first_elem = piece * options_.piece_elems};
}

}  // namespace forebay
