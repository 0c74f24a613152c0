// The folders that a run writes into, looked at before it does. Not for: files (file.h).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace forebay {

// UsageError or StorageError when no file could be made in `path`, or in the nearest folder above
// it that exists: what can be known without making one.
absl::Status CheckWritable(const std::string& path);

// A folder of the run's own, made as shared_file.h makes them, but UsageError where `path` itself
// is a symbolic link, which somebody else must have put there.
absl::Status MakeOwnDirectory(const std::string& path);

}  // namespace forebay
