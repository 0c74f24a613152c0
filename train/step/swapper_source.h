// The model's view of the swapper: train/ is where model/ and swap/ meet.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/model/param_source.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

// Used by one thread at a time. `swapper` must outlive it.
class SwapperSource : public ParamSource {
 public:
  SwapperSource(Swapper* swapper, DType weight_dtype) : swapper_(swapper), dtype_(weight_dtype) {}
  void Expect(std::span<const int> layers) override { swapper_->Expect(layers); }
  absl::StatusOr<WeightsLease> Acquire(int layer) override;

 protected:
  void Release(int layer) override { swapper_->Release(layer); }

 private:
  Swapper* const swapper_;
  const DType dtype_;
};

}  // namespace forebay
