// The window as a source of weights for a pass over layers.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/errors.h"
#include "forebay/step/param_source.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

// Used by one thread at a time. `swapper` must outlive it.
class SwapperSource : public ParamSource {
 public:
  SwapperSource(Swapper* swapper, DType weight_dtype) : swapper_(swapper), dtype_(weight_dtype) {}
  void Expect(std::span<const int> layers) override { swapper_->Expect(layers); }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    FOREBAY_ASSIGN_OR_RETURN(const std::span<const std::byte> data, swapper_->Acquire(layer));
    return WeightsLease(this, layer, {.dtype = dtype_, .data = data});
  }

 protected:
  void Release(int layer, Event* done) override { swapper_->Release(layer, done); }

 private:
  Swapper* const swapper_;
  const DType dtype_;
};

}  // namespace forebay
