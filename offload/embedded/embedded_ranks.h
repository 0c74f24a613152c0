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

// The store that a rank has in its folders.
struct StoreStanding {
  bool is_there = false;       // it has a commit
  int64_t step = 0;            // that is committed
  bool is_unfinished = false;  // StoreState::kUnfinished: other ranks may have no store yet
};

// Whether a new store may be made, if `own` is what this rank has. A creation that was cut off
// leaves some ranks with an unfinished store and others without one: `is_left_over` then.
// CorruptError: the creation of some ranks' stores was finished, and other ranks have no store.
// EnvironmentError of the ranks.
absl::Status AgreeOnCreation(const StoreStanding& own, Communicator& ranks, bool& is_left_over);

}  // namespace forebay
