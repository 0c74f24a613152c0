#include "forebay/train/run/run_trace.h"

#include <sys/stat.h>

#include <ctime>
#include <span>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/options/traced_steps.h"

namespace forebay {

RunTrace::RunTrace(const std::string& path, StepRange steps, const TracedRank& rank)
    : path_(path), steps_(steps), rank_(rank), made_at_s_(std::time(nullptr)) {
  if (path_.empty()) return;
  memory_ = std::make_unique<std::byte[]>(kTraceEventBytes);
  recorder_ = std::make_unique<TraceRecorder>(std::span(memory_.get(), kTraceEventBytes));
  NameThreadInTraces(kTrainingThread);
}

void RunTrace::BeforeCounting(int64_t step) {
  if (recorder_ == nullptr || is_done_ || is_recording_ || step < steps_.first) return;
  is_recording_ = recorder_->Start();
  is_done_ = !is_recording_;
  if (!is_recording_) return;
  for (StreamTrace* const streams : streams_) streams->Start(recorder_.get());
}

void RunTrace::BeginStep() {
  step_begin_ns_ = TraceNowNs();
}

void RunTrace::EndStep(int64_t step, const StepCost& cost, const Inventory& inventory,
                       TrainObserver& observer) {
  if (!is_recording_ || step < steps_.first) return;
  traced_.push_back({step, step_begin_ns_, TraceNowNs(), cost.before.io, cost.after.io});
  if (step >= steps_.last) End(inventory, observer);
}

void RunTrace::End(const Inventory& inventory, TrainObserver& observer) {
  if (!is_recording_) return;
  for (StreamTrace* const streams : streams_) streams->Stop();
  recorder_->Stop();
  is_recording_ = false;
  is_done_ = true;
  if (traced_.empty()) return;
  const absl::Status status = WriteTraceFile(path_, *recorder_, traced_, inventory, rank_);
  if (!status.ok()) {
    observer.OnWarning(fmt::format("--trace: no trace was written: {}", MessageOf(status)));
    return;
  }
  const int64_t dropped = recorder_->num_dropped();
  observer.OnNote(fmt::format(
      "wrote the trace of steps {} to {} to {}{}", traced_.front().step, traced_.back().step, path_,
      dropped == 0 ? ""
                   : fmt::format(", which lacks {} events, for which there was no room. Trace "
                                 "fewer steps with --set=trace_steps",
                                 dropped)));
}

void RunTrace::Join(TrainObserver& observer) const {
  if (traced_.empty() || rank_.rank != 0) return;
  for (int other = 1; other < rank_.num_ranks; ++other) {
    const std::string path = TraceFileOfRank(path_, other);
    struct stat info = {};
    // It may be on another host, or of an earlier run.
    if (::stat(path.c_str(), &info) != 0 || info.st_mtime < made_at_s_) continue;
    const absl::Status status = AppendTraceFile(path_, path);
    if (!status.ok()) {
      observer.OnWarning(fmt::format("--trace: '{}' lacks the rows of rank {}: {}", path_, other,
                                     MessageOf(status)));
    }
  }
}

}  // namespace forebay
