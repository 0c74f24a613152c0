#include "forebay/train/step/speculative_step.h"

#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

// The hope is for `scalars`. It is given up once the norm so far is above `most_norm`.
absl::StatusOr<StepResult> SpeculativeStep::RunHoping(const SpeculativeStepInputs& inputs,
                                                      const UpdateScalars& scalars,
                                                      double most_norm) {
  TrainingStep::Hooks hooks = inputs.hooks;
  // The first gradient comes when the step before is committed.
  hooks.previous_step_applied = [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(inputs.hooks.previous_step_applied());
    FOREBAY_RETURN_IF_ERROR(inputs.begin_writing());
    return session_->optimizer().BeginSpeculation(scalars, most_norm);
  };
  return session_->step().Run(inputs.batches, inputs.loss_scale, hooks);
}

absl::StatusOr<StepResult> SpeculativeStep::Run(const SpeculativeStepInputs& inputs) {
  computed_twice_ = false;
  if (!session_->optimizer().speculates()) {
    return session_->step().Run(inputs.batches, inputs.loss_scale, inputs.hooks);
  }
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const UpdateScalars hoped = inputs.scalars_of(0);
  absl::StatusOr<StepResult> first;
  if (hopes_) {
    const double most_norm = inputs.clip > 0 ? inputs.clip * inputs.loss_scale : kNoLimit;
    first = RunHoping(inputs, hoped, most_norm);
  } else {
    first = session_->step().Run(inputs.batches, inputs.loss_scale, inputs.hooks);
  }
  FOREBAY_RETURN_IF_ERROR(first.status());
  const UpdateScalars needed = inputs.scalars_of(first->gradient_norm);
  const bool is_finite = first->first_nonfinite_layer < 0 && std::isfinite(first->loss);
  if (!is_finite) return first;
  const bool is_clipped = needed.gradient_scale != hoped.gradient_scale;
  hopes_ = !is_clipped;
  if (first->speculation_is_complete && !is_clipped) return first;

  computed_twice_ = true;
  session_->optimizer().AbandonStep();
  FOREBAY_ASSIGN_OR_RETURN(const StepResult second, RunHoping(inputs, needed, kNoLimit));
  if (second.gradient_norm != first->gradient_norm || second.loss != first->loss) {
    return absl::InternalError(fmt::format(
        "a step that was computed twice has the loss {} and the gradient norm {}, and had {} and "
        "{}: nothing of it is applied. Resume, and report this; --gradients=hold does without",
        second.loss, second.gradient_norm, first->loss, first->gradient_norm));
  }
  return second;
}

}  // namespace forebay
