// A run that begins with the state of another one, whatever number of ranks has it and among how
// many the new one divides it: each rank copies its own part out of the folders of all.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"
#include "forebay/train/export/run_state.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// The run of --from, which stays as it is, but for OpenStateToCopy.
struct CopiedState {
  Json run_json;
  std::unique_ptr<Engine> engine;  // before what uses it
  std::unique_ptr<RunState> state;
};

// Opens the folders of all its ranks to read. Where a crash came while the ranks published a step,
// and some have and others have not, rank 0 of this run publishes it in the others before, as a
// resume would; a dry run does not, and ends with CorruptError. UsageError: a run that was stopped
// before its first commit, or of another layout than this one's; EnvironmentError: it is in use, or
// that of the ranks; the errors of RunState::Open and NewestRank.
absl::StatusOr<CopiedState> OpenStateToCopy(const PreparedRun& run);

}  // namespace forebay
