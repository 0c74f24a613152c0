// The agreement of several ranks before their first step. Each has a plan and a store of its own.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/collective/communicator.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

// UsageError names a setting that ranks have different values of, and which; every rank gets it.
// `own`: an object with the same keys on each rank, which are words for the message.
// EnvironmentError of the ranks.
absl::Status AgreeOnSettings(const Json& own, Communicator& ranks);

// Returns `own` where it is an error, else the error of the first rank that has one, with its
// number: where one rank cannot go on, none does, and none waits for it. EnvironmentError of the
// ranks.
absl::Status AgreeThatAllCan(const absl::Status& own, Communicator& ranks);

// For such a setting: one digit for each layer, when its gradient is applied.
std::string UpdateTimesOf(const Placement& placement);

// The step that the stores of all ranks can come to.
struct NewestCommit {
  size_t rank = 0;  // that has published it
  CommitStanding standing;
  Json trainer;  // that its commit carries
};

// For BringToStep. CorruptError, EnvironmentError of the ranks. Requires: as StandingOf.
absl::StatusOr<NewestCommit> FindNewestCommit(TensorStore& store, Communicator& ranks);

}  // namespace forebay
