// One process at a time makes, trains, repairs or cleans a run: the lock of the run folder, held
// from the first file that it writes there to the last. Who only reads takes none.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// Locks OUT/run.lock, which it makes where there is none, for as long as the descriptor is open.
// Requires: `out` is there. EnvironmentError names the process that has it, once it was waited for
// two seconds; StorageError. What was read before must be looked at again. Where the file system
// has no locks the descriptor is invalid, and `note` (may be nullptr; left alone otherwise) a line
// that says so.
absl::StatusOr<UniqueFd> TakeRunLock(const std::string& out, std::string* note = nullptr);
// The EnvironmentError that TakeRunLock would end with, at once and without a change to anything.
absl::Status CheckRunIsNotInUse(const std::string& out);
// Whether the file could be a lock of ours: others may have one of that name. StorageError.
absl::StatusOr<bool> LooksLikeARunLock(const std::string& path);

}  // namespace forebay
