#include "forebay/train/export/rank_weights.h"

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"

namespace forebay {

template <typename T, typename Read>
absl::Status RankWeights::ReadParts(const TensorSpec& tensor, int64_t first_elem, std::span<T> out,
                                    const Read& read) const {
  FOREBAY_RETURN_IF_ERROR(go_on_());
  const auto index = static_cast<int>(&tensor - parts_->whole().tensors().data());
  const ElemPieces pieces = parts_->PiecesOf(index, first_elem, std::ssize(out));
  for (const ElemPiece& piece : pieces) {
    const std::span<T> values = out.subspan(piece.first - first_elem, piece.num_elems);
    if (piece.part == ranks_->rank()) {
      FOREBAY_RETURN_IF_ERROR(
          read(own_->inventory().tensors()[index], piece.first_in_part, values));
    }
    FOREBAY_RETURN_IF_ERROR(ranks_->Broadcast(std::as_writable_bytes(values), piece.part));
  }
  return absl::OkStatus();
}

absl::Status RankWeights::ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                                      std::span<float> out) const {
  return ReadParts(tensor, first_elem, out,
                   [&](const TensorSpec& own, int64_t first, std::span<float> values) {
                     return own_->ReadTensor(own, TensorPlane::kMaster, first, values);
                   });
}

absl::Status RankWeights::ReadW16(const TensorSpec& tensor, int64_t first_elem,
                                  std::span<uint16_t> out) const {
  return ReadParts(tensor, first_elem, out,
                   [&](const TensorSpec& own, int64_t first, std::span<uint16_t> values) {
                     return own_->ReadTensorW16(own, first, values);
                   });
}

}  // namespace forebay
