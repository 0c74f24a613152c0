#include "forebay/train/background_export.h"

#include <system_error>
#include <utility>

#include "forebay/train/export.h"

namespace forebay {

BackgroundExport::BackgroundExport(TensorStore* store, const std::string& model_directory,
                                   std::string destination)
    : snapshot_(std::make_unique<StoreSnapshot>(store)),
      step_(snapshot_->step()),
      destination_(std::move(destination)) {
  try {
    thread_ = std::thread([this, model_directory] { Run(model_directory); });
  } catch (const std::system_error&) {
    // No more threads are to be had (a limit of the container or the user).
    Run(model_directory);
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
