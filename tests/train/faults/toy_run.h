// Training runs of a toy model within the test's own process: small enough that a run has a few
// hundred transfers, and can be repeated once for every one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"
#include "forebay/train/run/trainer.h"

namespace forebay {

inline constexpr int64_t kToySteps = 3;

// What is the same after every run of the same settings.
struct ToyResult {
  std::string state;  // digest of the committed state
  std::string model;  // digest of the exported model
  bool operator==(const ToyResult&) const = default;
};

// A model folder and its data, from which any number of runs start.
class ToyTask {
 public:
  // Makes both in `folder`, which exists.
  explicit ToyTask(const std::string& folder, int num_blocks = 2, int intermediate_size = 48);

  // A run in `out` with weights and state on disk. Gradients wait there too, since the memory is
  // the least that works.
  TrainOptions TightRun(const std::string& out) const;
  // The same as TightRun with its state in two folders, both in `out`.
  TrainOptions StripedRun(const std::string& out) const;
  // Delays the updates of a run from step 2 on, with no more memory than it needs then.
  void Delay(TrainOptions& options) const;
  // The same model in fp32 with gradients in RAM: other files, other transfers.
  TrainOptions RoomyRun(const std::string& out) const;

 private:
  std::string model_;
  std::string data_;
  int64_t least_ram_bytes_ = 0;
};

// The least budget that works, to the byte, where the message to a user rounds up.
int64_t LeastRam(TrainOptions options);

// Says nothing.
class SilentObserver : public TrainObserver {
 public:
  void OnPlan(const std::string&, const Json&) override {}
  void OnPhase(const std::string&, double) override {}
  void OnProgress(int64_t, int64_t, double) override {}
  void OnStep(const Json&) override {}
  void OnNote(const std::string&) override {}
  void OnWarning(const std::string&) override {}
  void OnDone(const Json&) override {}
};

absl::Status TrainToy(const TrainOptions& options, const TrainEnvironment& environment = {});
absl::Status TrainToy(const TrainOptions& options, const TrainEnvironment& environment,
                      TrainObserver& observer);
// Goes on with the run in `options.out` if there is one, and starts it anew if it never came so
// far.
absl::Status TrainToyOn(TrainOptions options, const TrainEnvironment& environment = {});

// Of a whole run. An error of whatever is missing.
absl::StatusOr<ToyResult> ResultOf(const std::string& out);

// The steps that metrics.jsonl has lines of.
std::vector<int64_t> StepsInMetrics(const std::string& out);

}  // namespace forebay
