// The folders that a new run takes, and what it must leave alone in them.
#pragma once

#include "absl/status/status.h"
#include "forebay/train/options.h"

namespace forebay {

// What a new run may put its files into: an --out that is new, empty, or holds an unfinished start,
// and folders for the store that are new or empty. UsageError otherwise; StorageError where nothing
// can be written. Changes nothing.
absl::Status CheckFoldersAreFree(const TrainOptions& options);

// Makes --out and removes what an unfinished start left of its store. The errors of
// CheckFoldersAreFree; StorageError. Once run.json says "creating", what lies in the store's
// folders is the run's to remove; before that it is not.
absl::Status ClaimFolders(const TrainOptions& options);

}  // namespace forebay
