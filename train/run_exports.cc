#include "forebay/train/run_exports.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/output_folder.h"
#include "forebay/base/round_up.h"
#include "forebay/model/model_folder.h"
#include "forebay/train/export.h"

namespace forebay {
namespace {

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

}  // namespace

absl::Status ExportErrorOfARun(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kDoesNotFit ? StorageError(MessageOf(status)) : status;
}

RunExports::RunExports(Options options, TensorStore* store, LoggedObserver* observer)
    : options_(std::move(options)), store_(store), observer_(observer) {}

std::string RunExports::PathOfCommitted() const {
  return JoinPath(options_.directory, fmt::format("step-{}", store_->committed().step));
}

absl::Status RunExports::HoldSpace(int64_t num_models) {
  if (num_models == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const int64_t sidecar_bytes, BytesOfSidecarFiles(options_.origin));
  model_bytes_ = MostBytesOfWeights(store_->inventory(), options_.dtype) + sidecar_bytes;
  const std::string out = std::filesystem::path(options_.directory).parent_path().string();
  FOREBAY_ASSIGN_OR_RETURN(space_, HeldSpace::Take(out, num_models * model_bytes_));
  return absl::OkStatus();
}

absl::Status RunExports::Start() {
  Await();
  FOREBAY_RETURN_IF_ERROR(error_);
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(options_.directory));
  space_.ShrinkTo(std::max<int64_t>(0, space_.bytes() - model_bytes_));
  current_ = std::make_unique<BackgroundExport>(
      store_, ExportedModel{options_.origin, PathOfCommitted(), options_.dtype, options_.files});
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
  FOREBAY_ASSIGN_OR_RETURN(const int64_t num_removed,
                           PruneExports(options_.directory, options_.keep));
  // For those that come.
  space_.GrowTo(space_.bytes() + num_removed * model_bytes_);
  return absl::OkStatus();
}

}  // namespace forebay
