#include "forebay/train/run/background_export.h"

#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/base/trace.h"

namespace forebay {

BackgroundExport::BackgroundExport(TensorStore* store, ExportedModel model,
                                   const std::function<bool()>& stop)
    : snapshot_(std::make_unique<StoreSnapshot>(store)),
      step_(snapshot_->step()),
      model_(std::move(model)) {
  absl::StatusOr<std::thread> thread = StartThread("exporting the model", [this] {
    NameThreadInTraces("export");
    Run([] { return false; });
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    Run(stop);  // later than it might be, but nothing is lost
  }
}

BackgroundExport::~BackgroundExport() {
  Await().IgnoreError();
}

// `stop`: asked on the thread that runs this.
void BackgroundExport::Run(const std::function<bool()>& stop) {
  TraceScope trace("export");
  status_ = ExportModel(*snapshot_, model_, [&](double fraction) {
    trace.Next();
    fraction_.store(fraction, std::memory_order_relaxed);
    const bool is_given_up = is_given_up_.load(std::memory_order_relaxed) || stop();
    return is_given_up ? InterruptedError("given up") : absl::OkStatus();
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
