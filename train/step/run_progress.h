// What a run has come to beside its weights: how many of its steps were updates, and the loss
// scale. Kept with each commit.
//
// Under fp16 a step whose gradients overflow is skipped: its data is used up, nothing is updated,
// and neither the schedule nor the optimizer's count moves. Otherwise every step is an update.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/options/options.h"
#include "forebay/train/step/loss_scaler.h"

namespace forebay {

// Owned by the training thread.
class RunProgress {
 public:
  explicit RunProgress(const TrainOptions& options);

  // The scale of the step to come; 1 unless the run scales its loss.
  double loss_scale() const { return scaler_.has_value() ? scaler_->scale() : 1.0; }
  bool scales_loss() const { return scaler_.has_value(); }
  int64_t num_updates() const { return num_updates_; }

  // What became of a step. An overflow is for runs that scale their loss (FOREBAY_CHECK).
  // LossScaler::Update's error, with nothing changed.
  absl::Status Advance(bool overflowed);

  // Into what a commit carries.
  void AddTo(Json& trainer) const;
  // CorruptError when the commit is not one of such a run.
  absl::Status Restore(const CommitInfo& committed);

 private:
  std::optional<LossScaler> scaler_;
  int64_t num_updates_ = 0;
};

}  // namespace forebay
