// What an update takes of the run beside gradients and state. Pure.
#pragma once

#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/train/options/lr_schedule.h"
#include "forebay/train/options/options.h"
#include "forebay/train/step/run_progress.h"

namespace forebay {

// The scalars of the update that may follow `progress`, after a step whose gradients, those of the
// loss times its scale, have this norm.
UpdateScalars NextUpdate(const TrainOptions& options, const LrScheduleOptions& schedule,
                         const RunProgress& progress, double gradient_norm);

}  // namespace forebay
