// How the loss is scaled under fp16. The scaler itself is train/step/loss_scaler.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay {

// Whose rules move the scale.
enum class LossScaling : uint8_t {
  kZero,    // DeepSpeed's DynamicLossScaler, of its ZeRO stages 1 to 3
  kStage0,  // DeepSpeed's scaler without ZeRO: no hysteresis, and no error at the least scale
  kTorch,   // torch.amp.GradScaler
};

constexpr std::string_view NameOf(LossScaling rules) {
  return rules == LossScaling::kZero ? "zero" : rules == LossScaling::kStage0 ? "stage0" : "torch";
}

struct LossScalerOptions {
  LossScaling rules = LossScaling::kZero;
  double static_scale = 0;       // above 0: never moves
  int initial_scale_power = 16;  // starts at 2^this
  int64_t window = 1000;         // good steps before the scale doubles (kTorch: growth_interval)
  // kZero: so many overflows until the scale falls; it starts again when the scale grows, or, if
  // consecutive_hysteresis, with every good step.
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_scale = 1;  // kTorch has none
};

}  // namespace forebay
