// The error that ends a run whose loss or gradients are not finite. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace forebay {

struct NotFinite {
  int64_t step = 0;
  std::string where;           // "the loss", or "the gradient of 'layers.0'"
  int64_t committed_step = 0;  // what of the run is saved; -1: nothing of it is kept
};

// NumericalError. Without a loss scale; `loss`: of the step.
absl::Status NotFiniteError(const NotFinite& found, double loss);
// With one that cannot fall any further; `why`: of the loss scaler. `loss_scale`: of the step.
absl::Status NotFiniteError(const NotFinite& found, const absl::Status& why, double loss_scale);

}  // namespace forebay
