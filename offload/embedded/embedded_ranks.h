// The folders of ranks that train one EmbeddedRun together, and what they find in them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/collective/communicator.h"

namespace forebay {

// Where rank `rank` of `num_ranks` has its store: in each of `folders` one of its own,
// "rank-0-of-2". With one rank `folders` themselves.
std::vector<std::string> FoldersOfRank(const std::vector<std::string>& folders, int rank,
                                       int num_ranks);

// UsageError: a folder has a store of another number of ranks, or is that of one of several.
absl::Status CheckStoresAreOf(const std::vector<std::string>& folders, int num_ranks);

// How many ranks have made the store in `folders`; 1: one process. BadInputError: there is none.
// UsageError: there are several.
absl::StatusOr<int> NumRanksOfStores(const std::vector<std::string>& folders);

// A rank's store that is being copied is marked until those of all ranks have their commit.
// StorageError.
absl::Status MarkUnfinished(const std::string& folder);
absl::Status MarkFinished(const std::string& folder);
bool IsUnfinished(const std::string& folder);

// The store that a rank has in its folders.
struct StoreStanding {
  bool is_there = false;       // it has a commit
  int64_t step = 0;            // that is committed
  bool is_unfinished = false;  // that step is of the state that was copied, if not all have it
};

// Whether a new store may be made, where `own` is what this rank has. A start that was cut off
// leaves some ranks at step 0, or with a copy that is unfinished, and others without a store:
// `is_left_over` then. CorruptError: some have made steps, and others have no store.
// EnvironmentError of the ranks.
absl::Status AgreeOnCreation(const StoreStanding& own, Communicator& ranks, bool& is_left_over);

}  // namespace forebay
