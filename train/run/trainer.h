// Runs a training run from options to the exported model. The step itself is
// train/step/training_step.h.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "forebay/train/options/options.h"
#include "forebay/train/options/train_observer.h"

namespace forebay {

// `stop`: polled between layers; true ends the run resumably with InterruptedError (exit 75).
absl::Status Train(const ResolvedOptions& resolved, const std::function<bool()>& stop,
                   TrainObserver& observer, const TrainEnvironment& environment = {});

}  // namespace forebay
