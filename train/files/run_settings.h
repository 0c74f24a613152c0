// Reads the settings that a run was started with: from resolved_config.json, where that is lost
// from its copy in OUT/files, or else from run.json as far as it has them. Not for: the order of
// sources (resolve_options.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct RunSettings {
  // {"section": {"key": {"value", "origin"}}}; every entry is of an option, has both, and a value
  // that the option may have.
  Json config;
  std::string file;  // that it comes from, for messages
  std::string note;  // one line where it is not resolved_config.json itself; else ""
};

// Requires: `out` is a run folder. The errors of ReadRunJson, where that is all that is left.
absl::StatusOr<RunSettings> ReadRunSettings(const std::string& out);
// One file of settings: UsageError, BadInputError or StorageError where it cannot be read,
// CorruptError names the entry that is wrong.
absl::StatusOr<Json> ReadSettingsFile(const std::string& path);

}  // namespace forebay
