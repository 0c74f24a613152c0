// Everything before the first step: model, plan, data, run folder and store, checked in the order
// in which a mistake costs the user least; nothing is written until all that can be checked
// beforehand was.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/data/packed_file.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/train/lr_schedule.h"
#include "forebay/train/options.h"
#include "forebay/train/plan.h"
#include "forebay/train/run_folder.h"
#include "forebay/train/trainer.h"

namespace forebay {

struct PreparedRun {
  TrainOptions options;  // with what the planner settled (threads, budget)
  DecoderConfig config;
  Plan plan;
  int64_t num_steps = 0;  // of the whole run
  LrScheduleOptions lr_schedule;
  std::unique_ptr<PackedFile> data;
  std::unique_ptr<PackedFile> eval_data;  // nullptr: no evaluation
  RunPaths paths{""};
  std::string model_directory;  // where the export takes config and tokenizer files from
  bool resumed = false;
  std::string fingerprint_digest;  // what each commit carries of the settings
  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<MemoryBudget> budget;
  std::unique_ptr<Engine> engine;
  int num_disks = 1;                   // that it works on side by side
  std::string engine_line;             // which one it is and why, for the log
  std::string stripes_line;            // of several folders, how much is in each; for the log
  std::unique_ptr<TensorStore> store;  // nullptr after a dry run
};

// UsageError (occupied --out, other settings than the run's), BadInputError (model, data),
// DoesNotFitError (memory, disk). `stop` as for Train: true ends the preparation within about a
// second with InterruptedError; the same command then works as if this one had never been.
absl::StatusOr<PreparedRun> PrepareRun(const ResolvedOptions& resolved,
                                       const std::function<bool()>& stop, TrainObserver& observer,
                                       const TrainEnvironment& environment);

}  // namespace forebay
