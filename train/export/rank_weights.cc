#include "forebay/train/export/rank_weights.h"

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/offload/ranks/read_parts.h"

namespace forebay {

template <typename T, typename Read>
absl::Status RankWeights::ReadParts(const TensorSpec& tensor, int64_t first_elem, std::span<T> out,
                                    const Read& read) const {
  FOREBAY_RETURN_IF_ERROR(go_on_());
  const auto index = static_cast<int>(&tensor - parts_->whole().tensors().data());
  return ReadOfAllParts(*parts_, *ranks_, index, first_elem, out,
                        [&](int64_t first, std::span<T> values) {
                          return read(own_->inventory().tensors()[index], first, values);
                        });
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
