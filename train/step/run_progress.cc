#include "forebay/train/step/run_progress.h"

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr char kUpdates[] = "updates";
constexpr char kScaler[] = "loss_scaler";

}  // namespace

RunProgress::RunProgress(const TrainOptions& options) {
  if (options.precision == cpu::Precision::kFp16) scaler_.emplace(ScalerOf(options));
}

absl::Status RunProgress::Advance(bool overflowed) {
  FOREBAY_CHECK(!overflowed || scales_loss());
  if (scales_loss()) FOREBAY_RETURN_IF_ERROR(scaler_->Update(overflowed));
  if (!overflowed) ++num_updates_;
  return absl::OkStatus();
}

void RunProgress::AddTo(Json& trainer) const {
  if (!scales_loss()) return;
  trainer[kUpdates] = num_updates_;
  trainer[kScaler] = scaler_->state();
}

absl::Status RunProgress::Restore(const CommitInfo& committed) {
  num_updates_ = committed.step;
  if (!scales_loss() || committed.step == 0) return absl::OkStatus();
  const Json& trainer = committed.trainer;
  const auto updates = trainer.contains(kUpdates) ? IntegerOf(trainer[kUpdates]) : std::nullopt;
  absl::Status restored = scaler_->Restore(trainer.value(kScaler, Json()));
  if (restored.ok() && (!updates.has_value() || *updates < 0 || *updates > committed.step)) {
    restored = BadInputError(fmt::format("it has no usable '{}'", kUpdates));
  }
  if (!restored.ok()) {
    return CorruptError(fmt::format("the commit of step {} is not of a run with a loss scale: {}",
                                    committed.step, MessageOf(restored)));
  }
  num_updates_ = *updates;
  return absl::OkStatus();
}

}  // namespace forebay
