#include "forebay/train/update_scalars.h"

#include "forebay/train/clip.h"

namespace forebay {

UpdateScalars NextUpdate(const TrainOptions& options, const LrScheduleOptions& schedule,
                         const RunProgress& progress, double gradient_norm) {
  UpdateScalars scalars;
  scalars.step = progress.num_updates() + 1;
  const ScheduledRates rates = RatesOf(schedule, scalars.step);
  scalars.lr = rates.lr;
  scalars.beta1 = rates.beta1;
  scalars.beta2 = rates.beta2;
  scalars.gradient_scale = ClipScale(options.clip, gradient_norm) / progress.loss_scale();
  scalars.rounding_seed = options.seed;
  return scalars;
}

}  // namespace forebay
