// The factor by which the loss is multiplied under fp16, so that small gradients do not vanish in
// it: fixed, or moved by what overflows.
//
// Not for: finding overflows (optimizer/held_gradients.h) or skipping steps (train/run/trainer.h).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/options/loss_scaling.h"

namespace forebay {

// With an overflow, in the words of DeepSpeed (i: steps seen, last: i of the last overflow, -1):
//   kZero    if hysteresis is used up: scale = max(scale / 2, min), an error where it is min
//            already; else hysteresis is used up by one. last = i.
//   kStage0  scale = max(scale / 2, min); last = i
//   kTorch   scale /= 2, good = 0
// Without one:
//   kZero    consecutive_hysteresis refills hysteresis; s = i - last - 1; if s > 0 and s is a
//            multiple of window: hysteresis is refilled and the scale doubles
//   kStage0  the same without hysteresis
//   kTorch   good += 1; at window: good = 0 and the scale doubles, where that is finite in fp32
// Source: deepspeed/runtime/fp16/{loss_scaler,fused_optimizer}.py, ATen/native/AmpKernels.cpp.
// Thread-compatible. Pure but for its own state.
class LossScaler {
 public:
  // Requires: positive scales and windows, hysteresis >= 1.
  explicit LossScaler(const LossScalerOptions& options);

  // The scale of the step to come.
  double scale() const { return scale_; }
  // What became of a step. An overflow means that it is skipped. NumericalError, with nothing
  // changed, when the scale would have to fall below its minimum.
  absl::Status Update(bool overflowed);

  // For the commit of a step: enough for another process to go on.
  Json state() const;
  // BadInputError names the key that is missing or of another type.
  absl::Status Restore(const Json& state);

 private:
  absl::Status Shrink();
  void Grow();

  const LossScalerOptions options_;
  double scale_;
  int64_t num_steps_ = 0;
  int64_t last_overflow_ = -1;  // of kTorch: its count of good steps is num_steps_ - last - 1
  int64_t hysteresis_left_;
};

}  // namespace forebay
