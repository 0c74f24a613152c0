// The agreement of several ranks before their first step. Each has a run folder, a plan and a store
// of its own.
#pragma once

#include "absl/status/status.h"
#include "forebay/base/json.h"
#include "forebay/train/options/options.h"
#include "forebay/train/options/train_observer.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// Makes `options` what rank `rank` of `num_ranks`, or each part of one process (data_parallel),
// does of it. UsageError: the rows of a micro-batch cannot be divided among them, or what is asked
// for is not there for several of them.
absl::Status TakePartOfRank(int rank, int num_ranks, TrainOptions& options);

// UsageError names a setting that ranks have different values of, and which; every rank of the run
// gets it. All that changes the result is compared (`fingerprint`: MakeFingerprint), and all that
// decides in which order a rank calls for the others. EnvironmentError of the ranks. With one
// process there is nothing to do.
absl::Status AgreeOnSettings(const PreparedRun& run, const Json& fingerprint);

// Brings the store that was opened to the step that all ranks have (swap/store/rank_commits.h).
// A dry run only looks whether they can come there. CorruptError, StorageError, EnvironmentError.
absl::Status AgreeOnCommit(PreparedRun& run, TrainObserver& observer);

}  // namespace forebay
