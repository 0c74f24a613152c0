// An export of a committed step on a thread of its own, while training goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/train/export/export.h"

namespace forebay {

// Owned by one thread.
class BackgroundExport {
 public:
  // Begins ExportModel of the committed step. `store` must outlive it. Where no thread can be had,
  // it is over when this returns, unless `stop` says true meanwhile, which gives it up.
  BackgroundExport(TensorStore* store, ExportedModel model, const std::function<bool()>& stop);
  ~BackgroundExport();  // waits
  BackgroundExport(const BackgroundExport&) = delete;
  BackgroundExport& operator=(const BackgroundExport&) = delete;

  int64_t step() const { return step_; }
  const std::string& folder() const { return model_.folder; }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  double fraction() const { return fraction_.load(std::memory_order_relaxed); }
  // Lets it end at once, with InterruptedError and nothing left of it, unless it is about to be
  // done.
  void GiveUp() { is_given_up_.store(true, std::memory_order_relaxed); }
  // Waits for its end. The errors of ExportModel.
  absl::Status Await();
  // Whether its error is of the store that it reads, not of where it goes. Requires: Await.
  bool store_failed() const { return store_failed_; }

 private:
  void Run(const std::function<bool()>& stop);

  std::unique_ptr<StoreSnapshot> snapshot_;  // ends with the export
  const int64_t step_;
  const ExportedModel model_;
  std::atomic<double> fraction_ = 0;
  std::atomic<bool> is_given_up_ = false;
  std::atomic<bool> is_done_ = false;
  absl::Status status_;        // the thread's, until it has ended
  bool store_failed_ = false;  // the same
  std::thread thread_;
};

}  // namespace forebay
