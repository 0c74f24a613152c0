// The space of files on their disk: what they have, what they lack, and taking that before it is
// needed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace forebay {

// Bytes that the file takes on its disk: less than its size where it has holes, or is compressed.
absl::StatusOr<int64_t> SpaceOfFile(const std::string& path);
// How many of the first `size_bytes` of a file have no place on its disk: its holes, and what lies
// behind its end. Space that was reserved and not written yet is the file's. BadInputError where
// there is no file, StorageError.
absl::StatusOr<int64_t> MissingFileSpace(const std::string& path, int64_t size_bytes);

// How large this process may make a file ('ulimit -f').
int64_t MostBytesOfAFile();
// The DoesNotFitError of a file that may not be so large, by that limit or by its file system.
// `what` begins the message: "'PATH'".
absl::Status FileTooLargeError(const std::string& what, int64_t size_bytes);

// Whether a file that is shorter than its space becomes as long.
enum class FileLength : uint8_t { kGrows, kStays };
// Gives an open file its space on the disk (fallocate), without changing what it holds. Only what
// it lacks has to be free. 0 or errno: ENOSPC where less is free, EFBIG where no file may be so
// large, EOPNOTSUPP where the file system cannot promise space.
int ReserveFileSpace(int fd, int64_t size_bytes, FileLength length = FileLength::kGrows);

}  // namespace forebay
