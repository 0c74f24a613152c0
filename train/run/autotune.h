// `train --autotune`: short runs with settings around those that a run has, and which was fastest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/options/options.h"
#include "forebay/train/options/train_observer.h"
#include "forebay/train/run/autotune_search.h"

namespace forebay {

struct AutotuneOptions {
  TuneLimits limits;       // of threads and tiles the machine's are filled in
  int64_t first_step = 3;  // whose time counts
  int64_t last_step = 5;   // and the last one, with which a trial ends
};

struct AutotuneReport {
  TuneOutcome outcome;
  int64_t tokens_per_step = 0;
  int64_t written_bytes = 0;  // to the disks of the swap area, by all trials
};

// `on_progress`: the number of the trial, and a fraction of it.
using AutotuneProgress = std::function<void(int trial, double fraction)>;

// Each trial is a whole run of `resolved` for some steps, without evaluation and export, in folders
// of its own beside OUT and in each of --nvme, which are removed behind it, with an error and an
// interruption too. The errors of Train; UsageError where there is nothing to tune for.
absl::StatusOr<AutotuneReport> Autotune(const ResolvedOptions& resolved,
                                        const AutotuneOptions& options,
                                        const std::function<bool()>& stop,
                                        const AutotuneProgress& on_progress);

// "--batch=8 --accum=2": what the best settings have of their own; empty: those of the run are it.
std::string BestFlags(const AutotuneReport& report);
// A row for each trial (docs/cli.md, "Autotuning").
Json ToJson(const AutotuneReport& report);
std::string FormatAutotune(const AutotuneReport& report);

}  // namespace forebay
