// One process at a time works on a store.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// Locks an open file with flock, waiting up to two seconds: the writes of a process that was just
// killed can hold its files a while after it is gone, and nothing may be read before they have
// landed. EnvironmentError when it stays locked.
absl::Status LockOpenFile(int fd, const std::string& path);

// Creates (0600) and locks `path`, and writes this process's PID into it. Closing the descriptor
// releases the lock. The file stays: removing it would let two processes lock two files of one
// name. EnvironmentError names the holder's PID.
absl::StatusOr<UniqueFd> TakeStoreLock(const std::string& path);

}  // namespace forebay
