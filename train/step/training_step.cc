#include "forebay/train/step/training_step.h"

#include <algorithm>

#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<StepResult> TrainingStep::Run(std::span<const MicroBatch> batches, double loss_scale,
                                             const Hooks& hooks) {
  StepResult result;
  for (const MicroBatch& batch : batches) {
    result.num_tokens += batch.num_tokens;
    result.num_trained += batch.num_trained;
  }
  // Loss and gradients are means over all trained tokens of the step, not means of micro-batch
  // means.
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, result.num_trained));

  FOREBAY_RETURN_IF_ERROR(compute_->BeginPass(batches, scale * loss_scale));
  WalkHooks walk_hooks = {.progress = hooks.progress, .commit = hooks.previous_step_applied};
  walk_hooks.hand = [this](int layer, const LayerGradient& gradient) {
    return optimizer_->Hand(layer, gradient, *pool_);
  };
  walk_.Announce(*source_);
  FOREBAY_RETURN_IF_ERROR(walk_.Run(*source_, *compute_, walk_hooks));
  double loss_sum = 0;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    FOREBAY_ASSIGN_OR_RETURN(const double loss, compute_->LossSumOf(batch));
    loss_sum += loss;
  }
  FOREBAY_ASSIGN_OR_RETURN(const GradientStats gradient, optimizer_->FinishBackward());
  result.loss = loss_sum * scale;
  result.gradient_norm = gradient.norm / loss_scale;
  result.first_nonfinite_layer = gradient.first_nonfinite_layer;
  result.speculation_is_complete = gradient.speculation_is_complete;
  return result;
}

}  // namespace forebay
