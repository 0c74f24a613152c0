// A committed step as a Hugging Face folder, which appears whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/train/export/weights_source.h"
#include "forebay/train/files/run_files.h"

namespace forebay {

struct ExportedModel {
  std::string origin;          // the folder from which config and tokenizer are copied: OUT/files
  std::string folder;          // to make
  DType dtype = DType::kBF16;  // of the weights, as WriteWeights (export_weights.h) has them
  RunFiles files;  // what is copied, and must be there; empty: whatever of a model is in `origin`
};

// `folder` appears complete (written beside, flushed, renamed) or not at all; an earlier one is
// replaced, at once where the file system can exchange two folders; what is left of that, or of an
// export that was killed, is removed by the next one. Its last file is the manifest
// (export_manifest.h). `progress(fraction)`: its error ends the export, of which nothing is left
// then. The errors of WriteWeights and CheckRunFiles; StorageError.
absl::Status ExportModel(const WeightsSource& source, const ExportedModel& model,
                         const std::function<absl::Status(double)>& progress);

// For a store with all of it.
inline absl::Status ExportModel(const StoreSnapshot& snapshot, const ExportedModel& model,
                                const std::function<absl::Status(double)>& progress) {
  return ExportModel(SnapshotSource(&snapshot), model, progress);
}

// What ExportModel makes, or may leave, beside `destination`, and removes before it begins.
std::vector<std::string> BesideExport(const std::string& destination);

// Removes what is left of exports that were not finished. Requires: none is under way.
absl::Status RemoveUnfinishedExports(const std::string& exports_directory);

// Removes the oldest exports ("step-N" folders) until `keep` remain. Returns how many.
absl::StatusOr<int64_t> PruneExports(const std::string& exports_directory, int64_t keep);

// The folder of the newest export there; nullopt when there is none. StorageError.
absl::StatusOr<std::optional<std::string>> NewestExport(const std::string& exports_directory);

}  // namespace forebay
