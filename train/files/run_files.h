// A run's own copies of the small files of its model (config.json, tokenizer and what else an
// exported model takes along), in OUT/files from the run's creation on. Exports come from them, and
// a resume reads them, so that nothing that happens to --model meanwhile gets into the run.
// run.json lists them, and each commit carries the digest of that list.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/json.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/train/files/export_files.h"

namespace forebay {

// The names, sizes and digests that they must have.
using RunFiles = std::vector<ExportedFile>;

RunFiles DescribeFiles(const std::vector<ModelFile>& files);
// As run.json has them, and back. `run_json` was checked (ReadRunJson); empty: the run has none
// yet.
Json ToJson(const RunFiles& files);
RunFiles RunFilesOf(const Json& run_json);
// Hashes all names and digests; a commit carries the result. 32 hexadecimal digits.
std::string DigestOf(const RunFiles& files);

// Writes them into `folder`, which is made where it is missing, and removes others there that a
// model could have. StorageError, UsageError (a link in place of the folder).
absl::Status WriteRunFiles(const std::string& folder, const std::vector<ModelFile>& files);
// Returns a line for each that is missing or is not what it was, with what to do: a model can do
// without it. config.json and tokenizer.json are an error instead: CorruptError, StorageError.
absl::StatusOr<std::vector<std::string>> CheckRunFiles(const std::string& folder,
                                                       const RunFiles& files);
struct RestoredFiles {
  std::vector<std::string> written;  // paths; of a dry run what would be written
  std::vector<std::string> lost;     // lines, as CheckRunFiles has them
};
// The same, but what is not as it was is taken from the folder `model` where that still has it. The
// error is that of the first that could not be restored; the others were.
absl::StatusOr<RestoredFiles> RestoreRunFiles(const std::string& folder, const RunFiles& files,
                                              const std::string& model, bool dry_run = false);
// Into the folder `to` of an exported model, which exists; config.json with `dtype` as that of the
// weights. What CheckRunFiles has a line for is left out. Its errors; StorageError.
absl::Status ExportRunFiles(const std::string& folder, const RunFiles& files, DType dtype,
                            const std::string& to);
// Whether the folder `model`, which a command names for a run that has these files, is the run's.
// UsageError when config.json or tokenizer.json differ. Returns the names of what else is there and
// is not the run's, and so is not used. The error of reading config.json where there is none.
absl::StatusOr<std::vector<std::string>> CompareModelFiles(const std::string& model,
                                                           const RunFiles& files);

// CorruptError where the tensors that the configuration at `config_path` asks for are not those of
// a store.
absl::Status CheckWeightsAreOf(const Inventory& wanted, const Inventory& stored,
                               const std::string& config_path);

}  // namespace forebay
