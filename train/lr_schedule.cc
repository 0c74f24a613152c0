#include "forebay/train/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "forebay/base/check.h"

namespace forebay {

double LearningRate(const LrScheduleOptions& options, int64_t step) {
  FOREBAY_CHECK(step >= 1 && step <= options.num_steps);
  if (step <= options.warmup) {
    return options.lr * (static_cast<double>(step) / static_cast<double>(options.warmup));
  }
  const double progress = static_cast<double>(step - 1 - options.warmup) /
                          static_cast<double>(options.num_steps - options.warmup);
  switch (options.schedule) {
    case LrSchedule::kConstant:
      return options.lr;
    case LrSchedule::kLinear:
      return options.lr * (1.0 - progress);
    case LrSchedule::kCosine:
      return options.lr * (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  }
  FOREBAY_CHECK(false);
}

}  // namespace forebay
