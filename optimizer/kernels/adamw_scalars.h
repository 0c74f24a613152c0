// The scalars of one AdamW step as every kernel uses them: computed in double, each rounded to fp32
// once.
#pragma once

#include <cmath>

#include "forebay/optimizer/adamw.h"

namespace forebay {

// The arithmetic that all kernels share, in this order, every operation in fp32 and rounded on its
// own (no fused multiply-add: SSE has none, and the kernel waits for memory anyway, so separate
// rounding costs nothing and gives the same bits on every instruction set and on GPUs):
//   g = g * gradient_scale
//   p = p * keep
//   m = m + (g - m) * one_minus_beta1                (torch's lerp)
//   v = v * beta2 + (one_minus_beta2 * g) * g        (torch's mul and addcmul)
//   p = p - step_size * (m / (sqrt(v) * inverse_sqrt_correction2 + eps))
// It differs from torch.optim.AdamW in one rounding: torch divides sqrt(v) by sqrt(1 - beta2^t), we
// multiply by the inverse. Division and square root are correctly rounded by IEEE 754, so they need
// no care.
struct AdamWScalars {
  AdamWScalars(const AdamWConfig& config, const AdamWStep& step, bool decay)
      : AdamWScalars(config, step, decay, step.beta1.value_or(config.beta1),
                     step.beta2.value_or(config.beta2)) {}

  float gradient_scale;
  float keep;  // what weight decay leaves of a weight; exactly 1 without decay
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;
  float eps;
  float step_size;

 private:
  AdamWScalars(const AdamWConfig& config, const AdamWStep& step, bool decay, double b1, double b2)
      : gradient_scale(static_cast<float>(step.gradient_scale)),
        keep(static_cast<float>(decay ? 1.0 - step.lr * config.weight_decay : 1.0)),
        one_minus_beta1(static_cast<float>(1.0 - b1)),
        beta2(static_cast<float>(b2)),
        one_minus_beta2(static_cast<float>(1.0 - b2)),
        inverse_sqrt_correction2(static_cast<float>(
            1.0 / std::sqrt(1.0 - std::pow(b2, static_cast<double>(step.step))))),
        eps(static_cast<float>(config.eps)),
        step_size(
            static_cast<float>(step.lr / (1.0 - std::pow(b1, static_cast<double>(step.step))))) {}
};

}  // namespace forebay
