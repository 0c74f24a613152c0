// swap-bench step: how long one training step of a model takes on a disk, found by replaying steps
// of the model, or of a slice of it where the whole would take too long.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"
#include "forebay/measure/load/statistics.h"
#include "forebay/measure/runs/bench_session.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/offload/plan.h"
#include "forebay/replay/replay_inputs.h"
#include "forebay/replay/step_replay.h"

namespace forebay {

struct StepBenchOptions {
  // The store lies in all of these folders, in proportion to their weights; where none has one, to
  // what each does alone, as a run's.
  std::vector<JobTarget> targets;
  ReplayInputs replay;  // its buffers are chosen by what fits, its shares by `targets`
  ReplayCompute compute = ReplayCompute::kNone;
  int num_threads = 1;  // of the update
  EngineKind engine = EngineKind::kAuto;
  bool strict = false;
  int64_t size_bytes =
      int64_t{4} << 30;   // in each folder, of the file that stands for a larger one
  int64_t ram_bytes = 0;  // for all buffers; 0: 80 % of what is available
  double seconds = 30;    // about as long as replayed steps take
  uint64_t seed = 1;
};

struct StepBenchReport {
  BenchReport bench;  // host, disk and warnings; no runs
  std::string engine;
  std::string engine_line;
  StepBenchOptions options;  // with the buffers and shares that were chosen

  OffloadPlan whole;              // of the model
  int num_blocks = 0;             // that were replayed: of a slice, fewer than the model has
  StepTransfers slice_transfers;  // of one replayed step, as the engine counted them
  int num_steps = 0;              // that were replayed
  int64_t file_bytes = 0;         // of the file in each folder
  // Where the weights of several folders are from: "as asked for", or what was measured.
  std::string weights_origin;
  int64_t most_folder_bytes = 0;  // of the store's part in any folder
  int64_t budget_bytes = 0;       // for buffers
  int64_t peak_bytes = 0;         // that buffers took

  Spread slice_s;  // of one replayed step
  Spread step_s;   // of a step of the model: the same, or in proportion to the bytes
  // Shares of the time of the replayed steps.
  double reading = 0;  // reads were in flight; of several disks, the mean
  double writing = 0;
  double committing = 0;  // the rest of the writes, flushes and the record were waited for
  double updating = 0;    // in the update's kernels

  bool sliced() const { return num_blocks < options.replay.num_blocks(); }
  bool folded() const { return file_bytes < most_folder_bytes; }
};

// UsageError, BadInputError, DoesNotFitError (memory, disk), StorageError, EnvironmentError (with
// `strict`), OutOfMemoryError, InterruptedError. Leaves nothing behind.
absl::StatusOr<StepBenchReport> RunStepBench(const StepBenchOptions& options,
                                             const BenchHooks& hooks);

// How many blocks to replay: as many as `bytes_per_s` can do about one step of within `seconds`,
// and whose buffers fit `ram_bytes`, and no fewer than kLeastSliceBlocks. 0: not even those fit.
// The errors of PlanReplay. Pure.
absl::StatusOr<int> BlocksToReplay(const ReplayInputs& whole, double bytes_per_s, double seconds,
                                   int64_t ram_bytes);

// A window of three blocks has to read some of them again.
inline constexpr int kLeastSliceBlocks = 4;

// The keys beside those of every result (docs/formats.md, "swap-bench results").
Json StepToJson(const StepBenchReport& report, double rated_tbw);

}  // namespace forebay
