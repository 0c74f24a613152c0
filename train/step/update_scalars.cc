#include "forebay/train/step/update_scalars.h"

#include "forebay/train/step/clip.h"

namespace forebay {

UpdateScalars NextUpdate(const TrainOptions& options, const LrScheduleOptions& schedule,
                         const RunProgress& progress, double gradient_norm) {
  UpdateScalars scalars;
  scalars.step = progress.num_updates() + 1;
  const ScheduledRates rates = RatesOf(schedule, scalars.step);
  scalars.lr = rates.lr;
  // PyTorch's one_cycle moves the momentum of SGD. DeepSpeed's moves betas alone, where an
  // optimizer has them (its lr_schedules.py, OneCycle).
  if (schedule.schedule != LrSchedule::kDeepSpeedOneCycle || HasBetas(options.optimizer)) {
    scalars.beta1 = rates.beta1;
    scalars.beta2 = rates.beta2;
  }
  scalars.gradient_scale = ClipScale(options.clip, gradient_norm) / progress.loss_scale();
  scalars.rounding_seed = options.seed;
  return scalars;
}

}  // namespace forebay
