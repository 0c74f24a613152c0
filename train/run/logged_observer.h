// Tells an observer what happens, and keeps its lines in events.log too.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "forebay/train/run/metrics.h"
#include "forebay/train/run/trainer.h"

namespace forebay {

// Used on the training thread, but for OnWarning, which any thread may call. Must outlive the
// engine whose warnings it takes.
class LoggedObserver : public TrainObserver {
 public:
  explicit LoggedObserver(TrainObserver& inner) : inner_(inner) {}
  ~LoggedObserver() override;
  LoggedObserver(const LoggedObserver&) = delete;
  LoggedObserver& operator=(const LoggedObserver&) = delete;

  // Opens events.log, once the run has its folder, and writes the lines that came before.
  absl::Status OpenLog(const std::string& path);
  // A line for the log alone. The log is a courtesy: that it cannot be written is told once, and
  // what comes then is on the screen alone. So no error of the log hides that of the run.
  void Log(const std::string& line);

  void OnPlan(const std::string& table, const Json& plan) override { inner_.OnPlan(table, plan); }
  void OnPhase(const std::string& phase, double fraction) override {
    inner_.OnPhase(phase, fraction);
  }
  void OnProgress(int64_t step, int64_t num_steps, double fraction) override {
    inner_.OnProgress(step, num_steps, fraction);
  }
  void OnStep(const Json& metrics) override { inner_.OnStep(metrics); }
  void OnNote(const std::string& line) override;
  void OnWarning(const std::string& line) override;
  void OnDone(const Json& summary) override { inner_.OnDone(summary); }

 private:
  void Queue(const std::string& line);
  void WriteWaiting();

  TrainObserver& inner_;
  std::optional<LineLog> log_;  // nothing: not open yet, or given up
  bool is_given_up_ = false;
  std::mutex mutex_;
  // mutex; lines before the log was open, and warnings until the training thread writes something
  std::vector<std::string> waiting_;
};

}  // namespace forebay
