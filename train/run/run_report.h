// What a run says of its steps and of itself at the end: the lines of metrics.jsonl and the closing
// summary (docs/cli.md has their keys).
#pragma once

#include <cmath>
#include <cstdint>
#include <map>

#include "forebay/aio/engine.h"
#include "forebay/base/activity.h"
#include "forebay/base/json.h"
#include "forebay/train/start/prepared_run.h"
#include "forebay/train/step/run_session.h"

namespace forebay {

// Counters of this process at one moment; the difference of two is what a step did.
struct Counters {
  IoStats io;
  double update_s = 0;
};
Counters ReadCounters(const PreparedRun& run, RunSession& session);

// The cost of one step.
struct StepCost {
  double step_s = 0;
  ActivityTimes waits;     // of it
  int64_t num_tokens = 0;  // without padding
  Counters before, after;
};

// The state of the run that the commit of a step with these metrics carries.
Json TrainerOfStep(const PreparedRun& run, RunSession& session, const Json& metrics);

// `line` (what does not depend on the clock) with what the step cost.
Json StepLine(Json line, const StepCost& cost, const PreparedRun& run);

// Sums over the steps of this process.
class SessionTotals {
 public:
  void Add(const StepCost& cost);

  int64_t num_steps = 0;
  double seconds = 0;
  int64_t num_tokens = 0;
  // Those of the step in the middle, as `report` has them: the first step of a session reads more,
  // and leaves its update's writes to the second. 0 before the first one.
  int64_t median_read_bytes() const { return Median(read_bytes_); }
  int64_t median_write_bytes() const { return Median(write_bytes_); }
  double first_eval_loss = std::nan("");
  double last_eval_loss = std::nan("");
  double last_loss = std::nan("");

 private:
  // How many steps moved so many bytes: of the longest run there are a few.
  using StepsByBytes = std::map<int64_t, int64_t>;
  static int64_t Median(const StepsByBytes& steps);

  StepsByBytes read_bytes_;
  StepsByBytes write_bytes_;
};

// `num_skipped`: steps of the whole run that were no updates; -1: it has none such.
Json RunSummary(const SessionTotals& totals, int64_t num_skipped, const PreparedRun& run,
                RunSession& session);

}  // namespace forebay
