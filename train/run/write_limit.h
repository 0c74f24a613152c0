// Counts what all sessions of a run write to the disks of its store, as the engine has it, and
// makes the stop that --max_tbw asks for before that is too much. The sum goes with every commit,
// and at the end of a session, where it is whole, to written.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "forebay/base/json.h"
#include "forebay/base/process/io_account.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// Owned by the training thread.
class WriteLimit {
 public:
  static WriteLimit Create(const PreparedRun& run);

  // Notes that a session has begun at what is written by now, which makes the last one's end a
  // thing of the past. Before anything of a step is written. StorageError.
  absl::Status Begin(int64_t committed_step) const;
  // Notes what is written in all, once the session at `committed_step` writes nothing more.
  absl::Status End(int64_t committed_step) const;

  // Written by all sessions up to now.
  int64_t written_bytes() const;
  // Into what a commit carries.
  void AddTo(Json& trainer) const;

  // InterruptedError where one more step, and saving what it leaves, might be more than the limit.
  absl::Status CheckNextStep() const;
  // For the message of that stop, once all is saved: what is written by now, and why no step more.
  std::string WhyNoMore() const;
  // To be told of each step.
  void AfterStep(int64_t write_bytes);

  // A warning, once, where the kernel has counted more than 1.1 times what the engine did since the
  // first call, beyond what logs write; "": not so, or the kernel does not say. For runs that
  // export nothing beside their steps.
  std::string CompareWithKernel();

 private:
  explicit WriteLimit(const PreparedRun& run);

  const PreparedRun* run_;
  int64_t limit_bytes_ = 0;                // 0: none
  int64_t before_bytes_ = 0;               // of the sessions before this one
  int64_t step_bytes_ = 0;                 // the most that a step writes
  std::optional<IoAccount> first_kernel_;  // at the first comparison
  int64_t first_engine_bytes_ = 0;         // the same
  bool has_warned_ = false;
};

// Whether the kernel has counted so much more that it is worth a warning.
bool KernelCountsMore(int64_t kernel_bytes, int64_t engine_bytes);

}  // namespace forebay
