// The agreement of several ranks before their first step. Each has a plan and a store of its own.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/collective/communicator.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

// Something that all ranks have to have the same of.
struct Setting {
  std::string name;  // words for the message: "--lr", "the tokens of --data"
  Json value;        // what is compared
  // The text for the message, if not the value: for a digest, the file and its size.
  std::string shown = {};
  // If it is a digest of many parts: what each of them is, in their order. Called only where ranks
  // differ, so that the message can name the first part that does.
  std::function<std::vector<std::string>()> parts = nullptr;
};

// The first setting that rank 0 and another have different values of, as text with both: "--lr is
// 0.1 on rank 0 (node1), and 0.2 on rank 1 (node2)". "": there is none. Every rank gets the same.
// EnvironmentError of the ranks.
absl::StatusOr<std::string> DifferenceOfSettings(std::span<const Setting> own, Communicator& ranks);
// The same as a UsageError.
absl::Status AgreeOnSettings(const std::vector<Setting>& own, Communicator& ranks);

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
