#include "forebay/train/step/swapper_source.h"

#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<WeightsLease> SwapperSource::Acquire(int layer) {
  FOREBAY_ASSIGN_OR_RETURN(const std::span<const std::byte> data, swapper_->Acquire(layer));
  return WeightsLease(this, layer, {dtype_, data});
}

}  // namespace forebay
