// Exports the committed step of a run that is not being trained.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"

namespace forebay {

struct ExportRunOptions {
  std::string run;  // run folder
  std::string out;  // folder to make, which must not be there; empty: exports/step-N of the run
  std::optional<DType> dtype;  // of the weights; nullopt: of the run's
  int64_t ram_bytes = 0;       // of the process; 0: no limit
  // Told the share that is written; an error of it ends the export, of which nothing is left.
  std::function<absl::Status(double)> progress;
};

struct ExportedRun {
  std::string note;            // lines: which copy of run.json was read, what is left out; or ""
  std::string folder;          // a Hugging Face folder
  int64_t step = 0;            // committed
  DType dtype = DType::kBF16;  // of the weights
  int64_t bytes = 0;           // the same
};

// The run stays as it is, and can be resumed. UsageError (`out` is there), BadInputError (no run),
// EnvironmentError (the run is being trained), DoesNotFitError (no room on disk or in `ram_bytes`),
// CorruptError, StorageError.
absl::StatusOr<ExportedRun> ExportRun(const ExportRunOptions& options);

}  // namespace forebay
