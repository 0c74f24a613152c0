// A run that goes on: where its store is, and that this command would do with it what it was
// started for.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// Opens the run that --resume means: lock, engine and store of `run`, its own files (not those of a
// run that has none yet), and what is fixed since the run was started in its options. Returns
// run.json. UsageError (no run, or an option that it cannot follow), EnvironmentError (in use),
// CorruptError (a record or file that is not the one of the commit; a store of another run); the
// errors of FindStoreDirectories and OpenRunStore.
absl::StatusOr<Json> OpenRunToResume(const ResolvedOptions& resolved, TrainObserver& observer,
                                     const TrainEnvironment& environment, PreparedRun& run);

// For the fingerprint: that of --model where this command names one with weights, or the run was
// never trained; else the one that the run has. The errors of SampleDigest.
absl::StatusOr<std::string> ModelDigestToResume(const Json& run_json,
                                                const ResolvedOptions& resolved);

// Compares the settings with those that the run was started with (UsageError names the difference),
// makes room for gradients on disk, and writes the records; of a dry run nothing. `files`: for a
// run that has none of its own, which takes them; else empty. `run_json`: what OpenRunToResume
// returned. Requires: the plan of `run`.
absl::Status ContinueRun(const ResolvedOptions& resolved, const Json& fingerprint,
                         const std::vector<ModelFile>& files, Json run_json, PreparedRun& run);

}  // namespace forebay
