// The steps that --trace records, and whether it can be done.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"

namespace forebay {

// Memory for what is recorded, and with it what it takes to write the file.
inline constexpr int64_t kTraceEventBytes = int64_t{16} << 20;
inline constexpr int64_t kTraceBytes = kTraceEventBytes + (int64_t{4} << 20);

// Whether a file can be made where --trace says. UsageError, StorageError.
absl::Status CheckTraceFile(const TrainOptions& options);

// Those of the options, or the three after the first of this process, as far as there are such; the
// first where it is the last of all. UsageError where the process does not come to the first of
// what the options say. `first_step`: of this process; `num_steps`: of the run.
absl::StatusOr<StepRange> TracedSteps(const TrainOptions& options, int64_t first_step,
                                      int64_t num_steps);

}  // namespace forebay
