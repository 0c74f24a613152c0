// What `forebay train` prints: the plan, a live line where there is a terminal, one line per step,
// the closing summary; or one JSON object per line.
#pragma once

#include <cstdio>
#include <string>

#include "forebay/base/json.h"
#include "forebay/tools/progress_line.h"
#include "forebay/train/run/trainer.h"

namespace forebay {

struct TrainOutputOptions {
  std::FILE* results = stdout;   // plan, steps, summary
  std::FILE* progress = stderr;  // live line, phases, notes
  bool json = false;  // objects on `results` instead of text: {"event": "plan|note|step|done", ...}
  bool live = false;  // `progress` is a terminal
};

// Used on the training thread only. The files must outlive it.
class TrainOutput : public TrainObserver {
 public:
  explicit TrainOutput(const TrainOutputOptions& options)
      : options_(options), live_(options.progress, options.live) {}

  void OnPlan(const std::string& table, const Json& plan) override;
  void OnPhase(const std::string& phase, double fraction) override;
  void OnProgress(int64_t step, int64_t num_steps, double fraction) override;
  void OnStep(const Json& metrics) override;
  void OnNote(const std::string& line) override;
  void OnWarning(const std::string& line) override;
  void OnDone(const Json& summary) override;

 private:
  void PrintResult(const std::string& text);
  void PrintEvent(const char* event, const Json& fields);

  const TrainOutputOptions options_;
  int64_t ram_budget_bytes_ = 0;  // of the plan
  std::string phase_;             // the one last announced
  ProgressLine live_;
};

// "step 12/500 | loss 2.1034 | gnorm 0.83 | ...", without a newline. `metrics`:
// TrainObserver::OnStep's.
std::string FormatStep(const Json& metrics, int64_t ram_budget_bytes);
// The closing lines. `summary`: TrainObserver::OnDone's.
std::string FormatSummary(const Json& summary);

}  // namespace forebay
