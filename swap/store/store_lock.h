// One process at a time works on a store.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// How long the files of a store are waited for once its lock is taken. Whoever held that is gone
// then, and only transfers that it had in flight still hold the files: 0.1 to 0.2 s were measured
// for 400 MB, and a slow disk takes as many times longer.
inline constexpr std::chrono::milliseconds kInFlightPatience(30'000);

// Locks an open file with flock, waiting up to `patience`: the writes of a process that was just
// killed hold its files a while after it is gone (io_uring), and nothing may be read before they
// have landed. EnvironmentError when it stays locked, with the holder's PID where the kernel tells.
absl::Status LockOpenFile(int fd, const std::string& path,
                          std::chrono::milliseconds patience = kInFlightPatience);

// The same for a reader, who shares the lock with other readers. OK too where the file system has
// no locks for what is opened to be read.
absl::Status ShareOpenFile(int fd, const std::string& path,
                           std::chrono::milliseconds patience = kInFlightPatience);

// Creates (0600) and locks `path`, waiting up to two seconds, and writes this process's PID into
// it. Closing the descriptor releases the lock. The file stays: removing it would let two processes
// lock two files of one name. EnvironmentError names the holder's PID, and the folder of the lock
// as `what` ("the store").
absl::StatusOr<UniqueFd> TakeStoreLock(const std::string& path,
                                       std::string_view what = "the store");
// The EnvironmentError that TakeStoreLock would end with, without waiting, and without a change to
// the file. Fine too where there is no lock, or none that can be read.
absl::Status CheckNotLocked(const std::string& path, std::string_view what);

// For readers, who change nothing: shares the lock at `path`, waiting up to two seconds for who
// writes to the store. An invalid descriptor where there is no lock, or this user may not open it:
// the files themselves are locked as well (ShareOpenFile). EnvironmentError names the holder's PID.
absl::StatusOr<UniqueFd> ShareStoreLock(const std::string& path);
// Whether somebody writes to the store whose lock is `path`. Waits for nothing.
bool IsStoreLocked(const std::string& path);

}  // namespace forebay
