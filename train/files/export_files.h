// The list of files in the manifest of an exported folder (docs/formats.md, "forebay_export.json"),
// which may come from others: text to values. Not for: looking at the files (export_manifest.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

inline constexpr int kExportFormat = 1;

struct ExportedFile {
  std::string name;  // leads nowhere but into the manifest's folder
  int64_t bytes = 0;
  std::string digest;
};

// The array of a manifest: [{"name", "bytes", "xxh3_128"}]. BadInputError, whose message goes on
// where "FILE" stands.
absl::StatusOr<std::vector<ExportedFile>> ParseFileList(const Json& list);

// Their bytes fit into an int64_t together. `path` is for messages. CorruptError.
absl::StatusOr<std::vector<ExportedFile>> ParseExportFiles(std::string_view text,
                                                           const std::string& path);

}  // namespace forebay
