// Whether a store lies in a folder: the question that is asked before one is made or removed, by
// every interface.
//
// A creation marks each folder (kCreatingName), durably, before it makes any other file there, and
// removes the mark once the first commit is durable. So a folder that is not marked, and has any
// file of a store, holds a store, whole or damaged. The answer needs the names in the folder, and
// no file has to be readable.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace forebay {

inline constexpr char kCreatingName[] = "creating";

// In the order of what is to be kept: the state of several folders is the highest of them.
enum class StoreState : uint8_t {
  kNone,        // nothing of a store, except perhaps a lock
  kHalfMade,    // marked, and without a commit record: a creation that was killed
  kUnfinished,  // marked, with its first commit: the creator has more to do (other ranks' stores)
  kThere,       // a store. Never removed for a new one, whatever is wrong with it
};

struct FolderState {
  StoreState state = StoreState::kNone;
  std::string file;  // name of a file of a store that lies there; "": none
};

// StorageError: the folder, or a commit record in a marked folder, cannot be read. Then nothing may
// be made or removed there. Thread-safe; takes no lock.
absl::StatusOr<FolderState> LookAtFolder(const std::string& directory);
// The highest state of several folders.
absl::StatusOr<StoreState> LookForStore(std::span<const std::string> directories);
// Whether that is a store which can be opened, or needs repair: its creation came to a commit.
inline bool HasCommit(StoreState state) {
  return state >= StoreState::kUnfinished;
}

// Marks a folder. StorageError. Requires: the caller holds the folder's lock.
absl::Status MarkCreating(const std::string& directory);
// Removes the mark, durably; OK if there is none. StorageError.
absl::Status UnmarkCreating(const std::string& directory);

}  // namespace forebay
