// Writes the weights of a committed step as a Hugging Face folder, a chunk of a tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/swap/store_snapshot.h"
#include "forebay/swap/tile_seals.h"

namespace forebay {

// Of a tensor, as fp32.
inline constexpr int64_t kExportChunkElems = int64_t{1} << 20;
// What ExportModel allocates at most, for budgets: its chunk, and the part of a tile that it is
// read from. (Files are compared in pieces of no more, afterwards.)
inline constexpr int64_t kExportBytes = (kExportChunkElems + kSealElems) * 4;

// `model_directory`: the folder that the run started from; its config and tokenizer files are
// copied. `destination` appears complete (written beside, flushed, renamed) or not at all; an
// earlier one is replaced, at once where the file system can exchange two folders; what is left of
// that, or of an export that was killed, is removed by the next one. Its last file is
// the manifest (export_manifest.h). Weights are BF16 (layout bf16: w16 as stored) or F32 (layout
// fp32). `progress(fraction)`: its error ends the export, of which nothing is left then.
absl::Status ExportModel(const StoreSnapshot& snapshot, const std::string& model_directory,
                         const std::string& destination,
                         const std::function<absl::Status(double)>& progress);

// What ExportModel makes, or may leave, beside `destination`, and removes before it begins.
std::vector<std::string> BesideExport(const std::string& destination);

// Removes what is left of exports that were not finished. Requires: none is under way.
absl::Status RemoveUnfinishedExports(const std::string& exports_directory);

// Removes the oldest exports ("step-N" folders) until `keep` remain.
absl::Status PruneExports(const std::string& exports_directory, int64_t keep);

// The folder of the newest export there; nullopt when there is none. StorageError.
absl::StatusOr<std::optional<std::string>> NewestExport(const std::string& exports_directory);

}  // namespace forebay
