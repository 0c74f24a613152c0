// The trace of --trace: records some steps of a run, and writes the file when they are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/base/trace.h"
#include "forebay/device/stream_trace.h"
#include "forebay/train/options/options.h"
#include "forebay/train/options/train_observer.h"
#include "forebay/train/run/run_report.h"
#include "forebay/train/run/trace_file.h"

namespace forebay {

// Owned by the training thread. Must outlive the session and the engine, whose threads may be in a
// scope that began while steps were recorded.
class RunTrace {
 public:
  RunTrace() = default;  // records nothing
  // `path`: empty: records nothing. kTraceBytes (traced_steps.h) are charged by the caller.
  RunTrace(const std::string& path, StepRange steps, const TracedRank& rank = {});

  // Their streams have rows too. They outlive the recording. Before it begins.
  void AddStreams(std::vector<StreamTrace*> streams) { streams_ = std::move(streams); }
  // Before the counters are read from which on the bytes of `step` are counted.
  void BeforeCounting(int64_t step);
  void BeginStep();
  // After the last of the steps the file is written, and the observer is told. That it cannot be
  // written is a warning.
  void EndStep(int64_t step, const StepCost& cost, const Inventory& inventory,
               TrainObserver& observer);
  // With the steps that were recorded, where the run ends before the last of them.
  void End(const Inventory& inventory, TrainObserver& observer);
  // At the end of a run of several ranks: rank 0's file gets the rows of those whose files it can
  // read. Their times count from where each began to record.
  void Join(TrainObserver& observer) const;

 private:
  std::string path_;
  StepRange steps_;
  TracedRank rank_;
  int64_t made_at_s_ = 0;  // by the clock of files
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<TraceRecorder> recorder_;  // nullptr: it records nothing
  std::vector<StreamTrace*> streams_;        // by GPU
  bool is_recording_ = false;
  bool is_done_ = false;
  int64_t step_begin_ns_ = 0;
  std::vector<TracedStep> traced_;
};

}  // namespace forebay
