// `forebay inspect RUN --repair` of what a run keeps beside its store: run.json,
// resolved_config.json and the run's own copies of its model's files, each of which is somewhere
// else a second time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/files/run_files.h"

namespace forebay {

// Returns the first copy of run.json that is whole and finds the run's store, or else the first
// that is whole. The errors of ReadRunJson.
absl::StatusOr<Json> FindRunJson(const std::string& run_directory);

// Writes anew what is lost, damaged, or not the one that the commit was made with, from what is
// whole. Returns the paths, and a line for each copy of a model's file that is lost and that a
// model can do without. By whoever holds the run's lock, once the store is in order. CorruptError
// where there is no second copy to take; what could be written was.
absl::StatusOr<RestoredFiles> RepairRecords(const std::string& run_directory,
                                            const CommitInfo& committed);

}  // namespace forebay
