// The folders that a new run takes, and what it must leave alone in them.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"
#include "forebay/train/options/options.h"

namespace forebay {

// What a new run may put its files into: an --out that is new, empty, or holds an unfinished start,
// and folders for the store that are new or empty. UsageError otherwise; StorageError where nothing
// can be written; EnvironmentError where another process is at work in --out. Changes nothing.
absl::Status CheckFoldersAreFree(const TrainOptions& options);

// Makes --out, takes its lock (run_lock.h), looks again, and removes what an unfinished start left
// of its store. The errors of CheckFoldersAreFree; StorageError. Once run.json says "creating",
// what says in the store's folders that it is of this store is the run's to remove. `note`: of
// TakeRunLock.
absl::StatusOr<UniqueFd> ClaimFolders(const TrainOptions& options, std::string* note);

}  // namespace forebay
