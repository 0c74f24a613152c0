// What an update takes of the run beside gradients and state. Pure.
#pragma once

#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/train/options/lr_schedule.h"
#include "forebay/train/options/options.h"
#include "forebay/train/step/run_progress.h"

namespace forebay {

// Of the update that may follow `progress`, after a step with this norm of its gradients, which are
// of the loss times its scale.
UpdateScalars NextUpdate(const TrainOptions& options, const LrScheduleOptions& schedule,
                         const RunProgress& progress, double gradient_norm);

}  // namespace forebay
