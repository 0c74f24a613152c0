// What has to be there before the first step, and what a start and a resume do alike to get it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "forebay/aio/engine.h"
#include "forebay/collective/communicator.h"
#include "forebay/data/packed_file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/train/files/run_files.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/options/lr_schedule.h"
#include "forebay/train/options/options.h"
#include "forebay/train/options/train_observer.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {

struct PreparedRun {
  // With what the planner settled (threads, budget). Of several ranks what this one does: its part
  // of the rows of a micro-batch, and exports on rank 0 alone.
  TrainOptions options;
  Communicator* ranks = nullptr;  // as TrainEnvironment has it
  int64_t rows_per_step = 0;      // of all ranks
  DecoderConfig config;
  std::shared_ptr<const InventoryParts> parts;  // nullptr: this one has the whole state
  Plan plan;
  int64_t num_steps = 0;  // of the whole run
  LrScheduleOptions lr_schedule;
  std::unique_ptr<PackedFile> data;
  std::unique_ptr<PackedFile> eval_data;  // nullptr: no evaluation
  RunPaths paths{""};
  UniqueFd lock;  // of the run folder; none for a dry run of a new one
  // Where config.json and the tokenizer are read: --model for a start, the run's own copies once it
  // has them, which exports come from.
  std::string model_directory;
  RunFiles files;  // what those copies are
  bool resumed = false;
  StepRange traced;                // of --trace
  std::string fingerprint_digest;  // what each commit carries of the settings
  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<MemoryBudget> budget;
  std::unique_ptr<Engine> engine;
  int num_disks = 1;                   // that it works on side by side
  std::string engine_line;             // which one it is and why, for the log
  std::string stripes_line;            // of several folders, how much is in each; for the log
  std::unique_ptr<TensorStore> store;  // nullptr after a dry run

  bool EvaluatesAfter(int64_t step) const {
    return eval_data != nullptr &&
           (step == num_steps || (options.eval_every > 0 && step % options.eval_every == 0));
  }
  bool SavesAfter(int64_t step) const {
    return options.save_every > 0 && step % options.save_every == 0 && step < num_steps;
  }
  // Whether anything of the state outlives the session.
  bool IsKept() const { return plan.store_files.records; }
  // Whether something after the step needs it committed.
  bool CommitsAfter(int64_t step) const {
    return step == num_steps || EvaluatesAfter(step) || SavesAfter(step);
  }
};

// The engine for the store in `directories`, which need not exist yet. The errors of
// ReadDiskProfile and OpenProfiledEngine (disk_profile.h); DoesNotFitError where this process may
// make no file that is large enough to try one ('ulimit -f').
absl::Status OpenEngineFor(const std::vector<std::string>& directories, TrainObserver& observer,
                           const TrainEnvironment& environment, PreparedRun& run);

// resolved_config.json, which a later --resume reads, perhaps from another folder, with its copy,
// and plan.json. Requires: OUT/files. StorageError.
absl::Status WriteRecords(const PreparedRun& run, const ResolvedOptions& resolved);

}  // namespace forebay
