// The manifest that finishes an exported folder: which files it has and what is in them
// (docs/formats.md, "What is written"). A folder with a manifest is complete, and whoever copied it
// can tell whether all of it arrived.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/swap/records/commit_record.h"

namespace forebay {

inline constexpr char kExportManifestName[] = "forebay_export.json";

struct ExportOrigin {
  StoreUuid store = {};  // of the run
  int64_t step = 0;
};

// Writes the manifest of all files in `folder`. `known_digests` (Xxh3_128::Hex), by file name, are
// those that the writer has taken; other files are read. StorageError.
absl::Status WriteExportManifest(const std::string& folder, const ExportOrigin& origin,
                                 const std::map<std::string, std::string>& known_digests);

struct ExportDamage {
  std::string file;     // path
  std::string message;  // with what to do
};
struct ExportCheck {
  int64_t bytes = 0;
  std::vector<ExportDamage> damaged;  // files that are missing, of another size, or changed
};
// Compares a folder with its manifest; files that the manifest does not know are left alone.
// `progress` (may be empty) is told the bytes so far. BadInputError (no manifest), CorruptError
// (one that cannot be understood), StorageError.
absl::StatusOr<ExportCheck> CheckExport(
    const std::string& folder, const std::function<void(int64_t done, int64_t all)>& progress);

}  // namespace forebay
