// The learning rate of each step.
#pragma once

#include <cstdint>

#include "forebay/train/options.h"

namespace forebay {

struct LrScheduleOptions {
  LrSchedule schedule = LrSchedule::kLinear;
  double lr = 0;          // the peak
  int64_t warmup = 0;     // steps, W
  int64_t num_steps = 1;  // of the whole schedule, N; --stop_after does not change it
};

// Learning rate of `step` (from 1). Steps 1..W: lr * step / W. After them, with
// p = (step - 1 - W) / (N - W): constant lr, linear lr * (1 - p), cosine lr * (1 + cos(pi p)) / 2.
// So step W+1 has the peak, and the rate reaches 0 only after step N. When W >= N, every step is
// warm-up. Requires: 1 <= step <= num_steps, warmup >= 0. Pure.
double LearningRate(const LrScheduleOptions& options, int64_t step);

}  // namespace forebay
