// Everything before the first step: model, plan, data, run folder and store, checked in the order
// in which a mistake costs the user least; nothing is written until all that can be checked
// beforehand was.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// UsageError (occupied --out, other settings than the run's), BadInputError (model, data),
// DoesNotFitError (memory, disk). `stop` as for Train: true ends the preparation within about a
// second with InterruptedError; the same command then works as if this one had never been.
absl::StatusOr<PreparedRun> PrepareRun(const ResolvedOptions& resolved,
                                       const std::function<bool()>& stop, TrainObserver& observer,
                                       const TrainEnvironment& environment);

}  // namespace forebay
