// The exports that a run makes on its way (--save_every), each beside the steps that follow it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/run/background_export.h"
#include "forebay/train/run/held_space.h"
#include "forebay/train/run/logged_observer.h"

namespace forebay {

// Owned by one thread. An export's error is no reason to lose a step: it stays in error() until the
// run has saved what was done. A full disk is no error: the export is left out, with a warning, as
// there may be room for the next. Nor is a stop: who waits for an export gives it up then, with a
// note, as it may take minutes. That of the committed step is made when the run is resumed.
class RunExports {
 public:
  struct Options {
    std::string origin;     // as ExportedModel's
    std::string directory;  // OUT/exports
    DType dtype = DType::kBF16;
    int64_t keep = 1;
    RunFiles files;              // as ExportedModel's
    std::function<bool()> stop;  // whether somebody asks the run to stop
  };
  // Everything pointed to must outlive it.
  RunExports(Options options, TensorStore* store, LoggedObserver* observer);

  // Keeps the space of so many models on the disk until they are written, with that of their inodes
  // and folders, so that no other program takes it. `whole`: all of the model, whatever part of it
  // the store has. DoesNotFitError, StorageError.
  absl::Status HoldSpace(const Inventory& whole, int64_t num_models);
  // Begins that of the committed step, after the end of the one before.
  absl::Status Start();
  // For a run that is resumed: removes what a crash has left of exports. Whether that of the
  // committed step is there; no other step's state is.
  absl::StatusOr<bool> TidyUp();
  // Whether there is room for one that begins now; else a warning says that it is left out.
  absl::StatusOr<bool> HasRoom();
  // Exports the committed step, whose weights are `weights`. Blocks: for ranks that divide the
  // state, which give each other their parts between two steps. InterruptedError on a stop; the
  // errors of ExportModel. Requires: HasRoom.
  absl::Status ExportStep(const WeightsSource& weights);
  // Waits for the one that is under way, if there is one, or gives it up.
  void Await();
  // Takes note of one that has ended meanwhile.
  void Poll();
  // The model of the run's end, of `weights`, to `folder`. Blocks. DoesNotFitError where the disk
  // has no room for it; InterruptedError on a stop; the errors of ExportModel. Requires: none is
  // under way.
  absl::Status ExportResult(const WeightsSource& weights, const std::string& folder);
  // The first error of one that has ended.
  const absl::Status& error() const { return error_; }
  // Whether that is of the run's own store, which exports read.
  bool store_failed() const { return store_failed_; }
  // Awaits, and returns what a run ends with that has come to `status`. An export that failed is no
  // less of an error where the run is stopped: whoever asked for it hears of it in the exit code.
  absl::Status End(const absl::Status& status);

 private:
  absl::Status Begin();
  absl::Status ExportNow(const WeightsSource& weights, const std::string& folder);
  // Notes it, and removes those that are older than the newest `keep`.
  absl::Status NoteExported(int64_t step, const std::string& folder);
  absl::Status Finish(BackgroundExport& done);
  void WarnOf(int64_t step, const absl::Status& why);
  // And holds the space again that it had begun to take.
  absl::Status LeaveOut(int64_t step, const absl::Status& why);
  std::string PathOfCommitted() const;

  const Options options_;
  TensorStore* const store_;
  LoggedObserver* const observer_;
  HeldSpace space_;
  int64_t model_bytes_ = 0;                    // of one export; 0: no space is held
  std::unique_ptr<BackgroundExport> current_;  // nullptr: none is under way
  absl::Status error_;
  bool store_failed_ = false;
};

}  // namespace forebay
