// A run that goes on: where its store is, and that this command would do with it what it was
// started for.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/prepared_run.h"

namespace forebay {

// Opens the run that --resume means: engine and store of `run`, and what is fixed since the run was
// started in its options. Returns run.json. UsageError (no run, or an option that it cannot
// follow); the errors of FindStoreDirectories and OpenRunStore.
absl::StatusOr<Json> OpenRunToResume(const ResolvedOptions& resolved, TrainObserver& observer,
                                     const TrainEnvironment& environment, PreparedRun& run);

// Compares the settings with those that the run was started with (UsageError names the difference),
// makes room for gradients on disk, and writes the records; of a dry run nothing. `run_json`: what
// OpenRunToResume returned. Requires: the plan of `run`.
absl::Status ContinueRun(const ResolvedOptions& resolved, const Json& fingerprint, Json run_json,
                         PreparedRun& run);

}  // namespace forebay
