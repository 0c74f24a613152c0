// A recording (base/trace.h) as a file of trace events, which Perfetto and chrome://tracing show
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
// docs/cli.md, "Traces", has its rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "forebay/aio/engine.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/base/trace.h"

namespace forebay {

struct TracedStep {
  int64_t step = 0;
  int64_t begin_ns = 0;  // as TraceNowNs
  int64_t end_ns = 0;
  IoStats before, after;  // of the engine: what lies between is counted with the step
};

// The row of the thread that trains.
inline constexpr char kTrainingThread[] = "training";

// Whose rows they are: those of several ranks have names and numbers of their own.
struct TracedRank {
  int rank = 0;
  int num_ranks = 1;
};

// Writes a new file or replaces one. Requires: the recording has stopped. StorageError.
absl::Status WriteTraceFile(const std::string& path, const TraceRecorder& recorder,
                            std::span<const TracedStep> steps, const Inventory& inventory,
                            const TracedRank& rank = {});
// Puts the rows of another rank's file behind those of `path`. StorageError; CorruptError where
// either is not as WriteTraceFile makes it. `path` is then as before.
absl::Status AppendTraceFile(const std::string& path, const std::string& of_other_rank);

}  // namespace forebay
