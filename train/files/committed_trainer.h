// Checks, field by field, the trainer's state that a commit of `forebay train` carries beside the
// weights (CommitInfo::trainer). A record that is whole may still be another program's, or of a
// version that wrote other things. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/files/run_files.h"

namespace forebay {

// Into what a commit carries, from the first one on; bound to the run's records by digests.
struct CommittedRun {
  int64_t num_steps = 0;
  std::string settings;  // FingerprintDigest of run.json's fingerprint
  std::string files;     // DigestOf its files
};
Json TrainerOf(const CommittedRun& run);

// The trainer's own count of what the run's sessions have written to its disks.
inline constexpr char kWrittenBytesKey[] = "written_bytes";

// The part that is alike in the commits of ranks that made a step together: the settings, and what
// is of all ranks. Stores of other runs, or that went on apart, differ in it.
Json HistoryOf(const Json& trainer);

// CorruptError names the field that is of the wrong type, or out of its range; `where` names the
// store. Fields that a commit lacks are those of another kind of run, or of an earlier version.
absl::Status CheckTrainer(const CommitInfo& committed, const std::string& where);

// Whether `run_json` (ReadRunJson) is the one that the commit was made with. CorruptError.
absl::Status CheckIsOfCommit(const Json& run_json, const std::string& path,
                             const CommitInfo& committed);

}  // namespace forebay
