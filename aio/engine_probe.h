// Real transfers that prove, before a run depends on it, that an engine works in a folder.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"

namespace forebay {

// A scratch file without a name, or with one that is removed at once: whatever happens, nothing is
// left behind.
struct ScratchFile {
  UniqueFd fd;
  std::string path;            // for messages
  std::string why_not_direct;  // empty: O_DIRECT is on
};

// In the nearest part of `folder` that exists. `direct`: try O_DIRECT. DoesNotFitError where there
// is no room for a file, StorageError.
absl::StatusOr<ScratchFile> OpenScratchFile(const std::string& folder, bool direct);

// Why files in `folder` have no direct I/O; "" when they have. Asks the file `file_to_read` where
// the folder has one, and a scratch file otherwise, whose errors are returned.
absl::StatusOr<std::string> WhyNoDirectIo(const std::string& folder,
                                          const std::string& file_to_read);

// Writes one aligned block and one of the engine's full length to a scratch file in `folder`, reads
// them back and compares. Where the folder has the file `file_to_read` (a name; "": none), its
// block at that offset is read instead and nothing is written: that the disk cannot read it is no
// reason against the engine. The error of the engine, a DoesNotFitError, or a StorageError.
absl::Status ProveEngine(Engine& engine, const std::string& folder,
                         const std::string& file_to_read = "", int64_t offset_to_read_bytes = 0);

}  // namespace forebay
