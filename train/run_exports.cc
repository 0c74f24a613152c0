#include "forebay/train/run_exports.h"

#include <chrono>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/output_folder.h"
#include "forebay/train/export.h"

namespace forebay {

absl::Status ExportErrorOfARun(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kDoesNotFit ? StorageError(MessageOf(status)) : status;
}

RunExports::RunExports(Options options, TensorStore* store, LoggedObserver* observer)
    : options_(std::move(options)), store_(store), observer_(observer) {}

std::string RunExports::PathOfCommitted() const {
  return JoinPath(options_.directory, fmt::format("step-{}", store_->committed().step));
}

absl::Status RunExports::Start() {
  Await();
  FOREBAY_RETURN_IF_ERROR(error_);
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(options_.directory));
  current_ = std::make_unique<BackgroundExport>(
      store_, ExportedModel{options_.origin, PathOfCommitted(), options_.dtype});
  return absl::OkStatus();
}

absl::Status RunExports::MakeUp(bool is_wanted) {
  if (IsDirectory(options_.directory)) {
    FOREBAY_RETURN_IF_ERROR(RemoveUnfinishedExports(options_.directory));
  }
  return is_wanted && !FileExists(PathOfCommitted()) ? Start() : absl::OkStatus();
}

void RunExports::Await() {
  if (current_ == nullptr) return;
  while (!current_->is_done()) {
    observer_->OnPhase("exporting", current_->fraction());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::unique_ptr<BackgroundExport> done = std::move(current_);
  const absl::Status finished = Finish(*done);
  if (error_.ok()) store_failed_ = done->store_failed();
  error_.Update(finished);
}

void RunExports::Poll() {
  if (current_ != nullptr && current_->is_done()) Await();
}

absl::Status RunExports::End(const absl::Status& status) {
  Await();
  if (error_.ok() || status == error_) return status;
  if (status.ok()) return error_;
  // The log is a courtesy; the error itself is what the caller reports.
  if (ExitCodeOf(status) == ExitCode::kInterrupted) {
    observer_->Note(fmt::format("the run is saved after step {}", store_->committed().step))
        .IgnoreError();
    return error_;
  }
  observer_->Note(MessageOf(error_)).IgnoreError();
  return status;
}

absl::Status RunExports::Finish(BackgroundExport& done) {
  FOREBAY_RETURN_IF_ERROR(Annotate(ExportErrorOfARun(done.Await()),
                                   fmt::format("exporting the model of step {}", done.step())));
  FOREBAY_RETURN_IF_ERROR(observer_->Note(
      fmt::format("exported the model of step {} to {}", done.step(), done.folder())));
  return PruneExports(options_.directory, options_.keep);
}

}  // namespace forebay
