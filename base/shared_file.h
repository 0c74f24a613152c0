// Files and folders that are made for others too: exports, models, reports. They have the
// permissions that the umask leaves of 0666 and 0777; those that file.h makes are for their owner
// alone. All else is as there.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// As OpenFile with O_CREAT.
absl::StatusOr<UniqueFd> CreateSharedFile(const std::string& path, int flags);
absl::Status WriteSharedFileAtomically(const std::string& path, std::string_view contents);
absl::Status MakeSharedDirectories(const std::string& path);

}  // namespace forebay
