#include "forebay/train/background_export.h"

#include <utility>

#include "forebay/base/start_thread.h"
#include "forebay/train/export.h"

namespace forebay {

BackgroundExport::BackgroundExport(TensorStore* store, const std::string& model_directory,
                                   std::string destination)
    : snapshot_(std::make_unique<StoreSnapshot>(store)),
      step_(snapshot_->step()),
      destination_(std::move(destination)) {
  absl::StatusOr<std::thread> thread =
      StartThread("exporting the model", [this, model_directory] { Run(model_directory); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    Run(model_directory);  // later than it might be, but nothing is lost
  }
}

BackgroundExport::~BackgroundExport() {
  Await().IgnoreError();
}

void BackgroundExport::Run(const std::string& model_directory) {
  status_ = ExportModel(*snapshot_, model_directory, destination_, [this](double fraction) {
    fraction_.store(fraction, std::memory_order_relaxed);
    return absl::OkStatus();
  });
  store_failed_ = snapshot_->read_failed();
  snapshot_.reset();
  is_done_.store(true, std::memory_order_release);
}

absl::Status BackgroundExport::Await() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace forebay
