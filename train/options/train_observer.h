// A caller gives a run two things beside its options: somebody to tell, and a world to run in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "forebay/aio/open_engine.h"
#include "forebay/base/json.h"
#include "forebay/collective/communicator.h"
#include "forebay/measure/host/physical_disks.h"

namespace forebay {

// What the run tells its user. Called on the training thread, but for OnWarning; must not fail.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void OnPlan(const std::string& table, const Json& plan) = 0;
  // "importing the model", "evaluating", "exporting": long work other than steps. fraction in [0,
  // 1].
  virtual void OnPhase(const std::string& phase, double fraction) = 0;
  // Within a step: fraction done; for a live line.
  virtual void OnProgress(int64_t step, int64_t num_steps, double fraction) = 0;
  // The object that was appended to metrics.jsonl, with "num_steps" and "eta_s" added.
  virtual void OnStep(const Json& metrics) = 0;
  virtual void OnNote(const std::string& line) = 0;  // one line, also in events.log
  // Something that cannot wait for the end of a step, such as a disk that stalls. Called on any
  // thread, unlike the others.
  virtual void OnWarning(const std::string& line) = 0;
  // The closing summary (stable keys; docs/cli.md).
  virtual void OnDone(const Json& summary) = 0;
};

// What a run takes from the world around it, for programs that put something else in its place:
// tests, a disk that fails. No option reaches it.
struct TrainEnvironment {
  // The engine for the folders of the swap area, as OpenEngine gives it.
  EngineOpener open_engine = OpenEngine;
  // The disks below the swap area, by their folders in /sys/devices.
  std::function<std::vector<std::string>(const std::vector<std::string>& folders)> disks_of =
      PhysicalDisksOf;
  // The ranks of a run in several processes: every rank's Train gets its own, and the same options
  // but for folders. Must outlive the run. nullptr: one process.
  Communicator* ranks = nullptr;
  int local_rank = 0;  // among the ranks of this machine: which GPU is its own

  int rank() const { return ranks == nullptr ? 0 : ranks->rank(); }
  int num_ranks() const { return ranks == nullptr ? 1 : ranks->size(); }
};

}  // namespace forebay
