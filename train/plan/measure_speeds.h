// Measures how fast this machine's CPU and RAM do what a step asks of them, with the step's own
// code: a few seconds.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "forebay/model/decoder_config.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/train/options/options.h"

namespace forebay {

// One block of the model, forward and backward, on some of a micro-batch's tokens, and an update of
// the layout. Takes the memory of one block and its workspace, and 0.4 GB for the update. `stop`:
// true ends it with InterruptedError. OutOfMemoryError.
absl::StatusOr<MachineSpeeds> MeasureSpeeds(const DecoderConfig& model, const TrainOptions& options,
                                            int num_cores, const std::function<bool()>& stop);

// The speeds of the disks in `limits` whose speed is not known (aio/speed_probe.h): some 0.5 GB
// written for each. StorageError, OutOfMemoryError, InterruptedError.
absl::Status MeasureDisks(const TrainOptions& options, const std::function<bool()>& stop,
                          MachineLimits& limits);

}  // namespace forebay
