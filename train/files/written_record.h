// written.json of a run folder: how many bytes the sessions of the run have written to the disks of
// its swap area, for the limit of --max_tbw and for reports. A commit has a count too, which cannot
// have what its own last blocks write, nor what a step after it does; this one is exact wherever a
// session came to its end. Not for exports and logs, which lie elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {

struct WrittenRecord {
  int64_t bytes = 0;
  int64_t step = 0;    // the committed one at that time
  bool ended = false;  // by the session that wrote it; else a session has begun at that, and goes
                       // on or was cut off

  bool operator==(const WrittenRecord&) const = default;
};

// nullopt: a run of an earlier version has none. BadInputError, CorruptError, StorageError.
absl::StatusOr<std::optional<WrittenRecord>> ReadWrittenRecord(const std::string& path);
// StorageError.
absl::Status WriteWrittenRecord(const std::string& path, const WrittenRecord& record);

// The most that one step writes, and making the store, where nothing better is known.
struct MostWritten {
  int64_t making_bytes = 0;
  int64_t step_bytes = 0;
};

// Written by the sessions before one that resumes the run at `committed`: never too little, unless
// a power cut takes lines of metrics.jsonl. To the byte where the last one ended; of one that was
// cut off, the steps that metrics.jsonl has lines of count too, and one that has none.
int64_t WrittenBefore(const RunPaths& paths, const CommitInfo& committed, const MostWritten& most);

}  // namespace forebay
