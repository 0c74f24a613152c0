#include "forebay/train/run/run_exports.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/output_folder.h"
#include "forebay/base/round_up.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/train/export/export.h"

namespace forebay {
namespace {

// For the names of an export and what file systems keep beside its bytes. XFS makes inodes as they
// are needed, 64 at a time (32 KiB), and each part of the disk keeps some blocks for its own lists.
constexpr int64_t kBytesBesideFiles = int64_t{256} << 10;

// Of the safetensors file, in whole blocks.
int64_t MostBytesOfWeights(const Inventory& inventory, DType dtype) {
  constexpr int64_t kBlockBytes = 4096;
  constexpr int64_t kEntryBytes = 256;  // of the header: dtype, shape and offsets, beside the name
  int64_t bytes = kBlockBytes + inventory.num_params() * SizeOf(dtype);
  for (const TensorSpec& tensor : inventory.tensors()) {
    bytes += kEntryBytes + static_cast<int64_t>(tensor.name.size());
  }
  return RoundUp(bytes, kBlockBytes);
}

// Whether an export has given `status` because its disk has no room for it.
bool HasNoRoom(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kDoesNotFit || IsOutOfSpace(status);
}

}  // namespace

RunExports::RunExports(Options options, TensorStore* store, LoggedObserver* observer)
    : options_(std::move(options)), store_(store), observer_(observer) {}

std::string RunExports::PathOfCommitted() const {
  return JoinPath(options_.directory, fmt::format("step-{}", store_->committed().step));
}

absl::Status RunExports::HoldSpace(const Inventory& whole, int64_t num_models) {
  if (num_models == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const int64_t sidecar_bytes, BytesOfSidecarFiles(options_.origin));
  model_bytes_ = MostBytesOfWeights(whole, options_.dtype) + sidecar_bytes + kBytesBesideFiles;
  const std::string out = std::filesystem::path(options_.directory).parent_path().string();
  FOREBAY_ASSIGN_OR_RETURN(space_, HeldSpace::Take(out, num_models * model_bytes_));
  return absl::OkStatus();
}

absl::Status RunExports::Start() {
  Await();
  FOREBAY_RETURN_IF_ERROR(error_);
  space_.ShrinkTo(std::max<int64_t>(0, space_.bytes() - model_bytes_));
  const absl::Status begun = Begin();
  return HasNoRoom(begun) ? LeaveOut(store_->committed().step, begun) : begun;
}

absl::Status RunExports::Begin() {
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(options_.directory));
  current_ = std::make_unique<BackgroundExport>(
      store_, ExportedModel{options_.origin, PathOfCommitted(), options_.dtype, options_.files},
      options_.stop);
  return absl::OkStatus();
}

absl::Status RunExports::ExportNow(const WeightsSource& weights, const std::string& folder) {
  const ExportedModel model = {options_.origin, folder, options_.dtype, options_.files};
  return ExportModel(weights, model, [&](double fraction) {
    observer_->OnPhase("exporting", fraction);
    return options_.stop() ? InterruptedError("stopped on request") : absl::OkStatus();
  });
}

absl::Status RunExports::ExportResult(const WeightsSource& weights, const std::string& folder) {
  space_.ShrinkTo(0);
  const absl::Status exported = ExportNow(weights, folder);
  if (!HasNoRoom(exported)) return exported;
  return DoesNotFitError(fmt::format(
      "all steps are done and saved, but there is no room for the model: {}. With more room, the "
      "same command with --resume exports it, or 'forebay export {} --out FOLDER' elsewhere",
      MessageOf(exported), std::filesystem::path(folder).parent_path().string()));
}

absl::StatusOr<bool> RunExports::TidyUp() {
  if (IsDirectory(options_.directory)) {
    FOREBAY_RETURN_IF_ERROR(RemoveUnfinishedExports(options_.directory));
  }
  return FileExists(PathOfCommitted());
}

absl::StatusOr<bool> RunExports::HasRoom() {
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(options_.directory));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeSpace(options_.directory));
  if (space_.bytes() + free_bytes >= model_bytes_) return true;
  WarnOf(store_->committed().step,
         DoesNotFitError(fmt::format("'{}' has {} left, and it takes {}", options_.directory,
                                     FormatBytes(free_bytes), FormatBytes(model_bytes_))));
  return false;
}

absl::Status RunExports::ExportStep(const WeightsSource& weights) {
  const int64_t step = store_->committed().step;
  space_.ShrinkTo(std::max<int64_t>(0, space_.bytes() - model_bytes_));
  const absl::Status exported = ExportNow(weights, PathOfCommitted());
  if (exported.ok()) return NoteExported(step, PathOfCommitted());
  if (ExitCodeOf(exported) == ExitCode::kInterrupted) return exported;
  return Annotate(exported, fmt::format("exporting the model of step {}", step));
}

void RunExports::Await() {
  if (current_ == nullptr) return;
  while (!current_->is_done()) {
    if (options_.stop()) current_->GiveUp();
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
  if (ExitCodeOf(status) == ExitCode::kInterrupted) {
    observer_->OnNote(fmt::format("the run is saved after step {}", store_->committed().step));
    return error_;
  }
  observer_->OnNote(MessageOf(error_));
  return status;
}

absl::Status RunExports::Finish(BackgroundExport& done) {
  const absl::Status exported = done.Await();
  if (ExitCodeOf(exported) == ExitCode::kInterrupted) {
    observer_->OnNote(
        fmt::format("the model of step {} is not exported, as the run is stopped", done.step()));
    return absl::OkStatus();
  }
  if (HasNoRoom(exported) && !done.store_failed()) return LeaveOut(done.step(), exported);
  FOREBAY_RETURN_IF_ERROR(
      Annotate(exported, fmt::format("exporting the model of step {}", done.step())));
  return NoteExported(done.step(), done.folder());
}

absl::Status RunExports::NoteExported(int64_t step, const std::string& folder) {
  observer_->OnNote(fmt::format("exported the model of step {} to {}", step, folder));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t num_removed,
                           PruneExports(options_.directory, options_.keep));
  // For those that come.
  space_.GrowTo(space_.bytes() + num_removed * model_bytes_);
  return absl::OkStatus();
}

void RunExports::WarnOf(int64_t step, const absl::Status& why) {
  observer_->OnWarning(fmt::format(
      "the model of step {} is not exported, as the disk is full, and training goes on: {}", step,
      MessageOf(why)));
}

absl::Status RunExports::LeaveOut(int64_t step, const absl::Status& why) {
  WarnOf(step, why);
  space_.GrowTo(space_.bytes() + model_bytes_);
  return absl::OkStatus();
}

}  // namespace forebay
