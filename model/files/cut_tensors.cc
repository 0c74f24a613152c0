#include "forebay/model/files/cut_tensors.h"

#include <algorithm>
#include <tuple>

#include "forebay/aio/engine.h"
#include "forebay/base/round_up.h"

namespace forebay {
namespace {

using How = TensorPiece::How;

// Between the parts of a layer somebody looks whether the next one can be started.
constexpr int64_t kMaxInPlaceBytes = int64_t{8} << 20;

int64_t BlockDown(int64_t bytes) {
  return bytes / kIoAlignBytes * kIoAlignBytes;
}

// The rest of `value`, which may be negative, behind a multiple of `align`.
int64_t Residue(int64_t value, int64_t align) {
  return (value % align + align) % align;
}

// 0 where elements are less than a byte, which no reader takes.
int64_t StoredBytes(const PlacedTensor& tensor) {
  return (tensor.place.end_bytes - tensor.place.begin_bytes) /
         std::max<int64_t>(1, tensor.num_elems);
}

bool BlocksAreWholeElems(const PlacedTensor& tensor) {
  const int64_t elem_bytes = StoredBytes(tensor);
  return tensor.direct && elem_bytes > 0 && tensor.place.begin_bytes % elem_bytes == 0;
}

bool NeedsNoStaging(const PlacedTensor& tensor, const CutOptions& options) {
  return BlocksAreWholeElems(tensor) &&
         tensor.source->entry.dtype_name == SafetensorsName(options.dtype);
}

// The shift of the vector with which addresses of this tensor suit its offsets in the file.
int64_t WantedShift(const PlacedTensor& tensor, const CutOptions& options) {
  return Residue(tensor.place.begin_bytes - tensor.offset_elems * SizeOf(options.dtype),
                 options.memory_align_bytes);
}

// The shift that most bytes want.
int64_t ChooseShift(std::span<const PlacedTensor> tensors, const CutOptions& options) {
  int64_t chosen = 0;
  int64_t most_bytes = 0;
  for (const PlacedTensor& candidate : tensors) {
    if (!NeedsNoStaging(candidate, options)) continue;
    const int64_t shift = WantedShift(candidate, options);
    int64_t bytes = 0;
    for (const PlacedTensor& tensor : tensors) {
      if (!NeedsNoStaging(tensor, options) || WantedShift(tensor, options) != shift) continue;
      bytes += tensor.place.end_bytes - tensor.place.begin_bytes;
    }
    if (bytes <= most_bytes) continue;
    chosen = shift;
    most_bytes = bytes;
  }
  return chosen;
}

// The pieces of one tensor.
class Cutter {
 public:
  Cutter(const PlacedTensor& tensor, const CutOptions& options, std::vector<TensorPiece>& pieces)
      : tensor_(tensor), options_(options), pieces_(pieces) {}

  void Cut(int64_t shift_bytes) {
    const int64_t begin = tensor_.place.begin_bytes;
    const int64_t end = tensor_.place.end_bytes;
    if (!NeedsNoStaging(tensor_, options_)) return CutOthers(begin, end);
    const int64_t before =
        Residue(shift_bytes - WantedShift(tensor_, options_), options_.memory_align_bytes);
    int64_t from = RoundUp(begin, kIoAlignBytes);
    if (from - begin < before) from += kIoAlignBytes;
    const int64_t until = BlockDown(end);
    if (from >= until) return CutOthers(begin, end);
    CutOthers(begin, from);
    CutInPlace(from, until, before);
    CutOthers(until, end);
  }

 private:
  TensorPiece& Add(How how, int64_t begin, int64_t end) {
    const int64_t elem_bytes = std::max<int64_t>(1, StoredBytes(tensor_));
    TensorPiece& piece = pieces_.emplace_back();
    piece.source = tensor_.source;
    piece.how = how;
    const int64_t first = (begin - tensor_.place.begin_bytes) / elem_bytes;
    piece.first_elem = tensor_.first_elem + first;
    piece.target_elem = tensor_.offset_elems + first;
    piece.num_elems =
        end == tensor_.place.end_bytes ? tensor_.num_elems - first : (end - begin) / elem_bytes;
    piece.from_bytes = BlockDown(begin);
    piece.until_bytes = RoundUp(end, kIoAlignBytes);
    piece.skip_bytes = begin - piece.from_bytes;
    return piece;
  }

  // One piece where it has to be moved: that writes to where the next one would be read.
  void CutInPlace(int64_t from, int64_t until, int64_t before) {
    const int64_t most = before > 0 ? until - from : kMaxInPlaceBytes;
    for (int64_t at = from; at < until; at += most)
      Add(How::kInPlace, at, std::min(at + most, until)).before_bytes = before;
  }

  void CutOthers(int64_t begin, int64_t end) {
    const bool cut = BlocksAreWholeElems(tensor_);
    const int64_t last_block = BlockDown(tensor_.place.file_bytes);
    for (int64_t at = begin; at < end;) {
      const bool staged = cut && at < last_block;
      const int64_t until =
          staged ? std::min({end, BlockDown(at) + options_.piece_bytes, last_block}) : end;
      Add(staged ? How::kStaged : How::kByReader, at, until);
      at = until;
    }
  }

  const PlacedTensor& tensor_;
  const CutOptions& options_;
  std::vector<TensorPiece>& pieces_;
};

}  // namespace

CutLayer CutTensors(std::span<const PlacedTensor> tensors, const CutOptions& options) {
  CutLayer layer;
  layer.shift_bytes = ChooseShift(tensors, options);
  for (const PlacedTensor& tensor : tensors)
    Cutter(tensor, options, layer.pieces).Cut(layer.shift_bytes);
  std::ranges::stable_sort(layer.pieces, {}, [](const TensorPiece& piece) {
    return std::tuple(piece.how != How::kInPlace, piece.source->shard,
                      piece.from_bytes + piece.skip_bytes);
  });
  return layer;
}

}  // namespace forebay
