// Real transfers that prove, before a run depends on it, that an engine works in a folder.
#pragma once

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

// In the nearest part of `folder` that exists. `direct`: try O_DIRECT. StorageError.
absl::StatusOr<ScratchFile> OpenScratchFile(const std::string& folder, bool direct);

// Writes one aligned block and one of the engine's full length to a scratch file in `folder`, reads
// them back and compares. The error of the engine, or a StorageError.
absl::Status ProveEngine(Engine& engine, const std::string& folder);

}  // namespace forebay
