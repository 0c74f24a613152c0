#include "forebay/train/step/training_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/collective/gather_values.h"

namespace forebay {

absl::Status TrainingStep::RunPass(const StepInputs& inputs, double gradient_scale) {
  const TraceScope trace("pass");
  FOREBAY_RETURN_IF_ERROR(compute_->BeginPass(inputs.batches, gradient_scale));
  WalkHooks hooks = {.progress = inputs.progress};
  hooks.commit = [&]() -> absl::Status {
    if (inputs.before_backward) FOREBAY_RETURN_IF_ERROR(inputs.before_backward());
    return layers_->UpdatesOfTheStepBefore();
  };
  hooks.hand = [this](const LayerGradient& gradient) { return layers_->Hand(gradient); };
  hooks.activations = activations_;
  walk_.Announce(*source_);
  return walk_.Run(*source_, *compute_, hooks);
}

absl::Status TrainingStep::BeginStep(StepUpdate update) {
  const TraceScope trace("begin the step");
  return layers_->BeginStep(std::move(update));
}

absl::StatusOr<double> TrainingStep::LossSum(std::span<const MicroBatch> batches) const {
  const TraceScope trace("sum of losses");
  double sum = 0, of_part = 0;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    // Part by part, as ranks add theirs.
    if (batch > 0 && batches[batch].part != batches[batch - 1].part) {
      sum += std::exchange(of_part, 0);
    }
    FOREBAY_ASSIGN_OR_RETURN(const double loss, compute_->LossSumOf(batch));
    of_part += loss;
  }
  sum += of_part;
  if (ranks_ == nullptr) return sum;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<double> sums, GatherValues(*ranks_, sum));
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

absl::Status TrainingStep::AddTokens(std::span<const MicroBatch> batches,
                                     StepResult& result) const {
  struct Tokens {
    int64_t all = 0;
    int64_t trained = 0;
  } own;
  for (const MicroBatch& batch : batches) {
    own.all += batch.num_tokens;
    own.trained += batch.num_trained;
  }
  std::vector<Tokens> of_ranks = {own};
  if (ranks_ != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(of_ranks, GatherValues(*ranks_, own));
  }
  for (const Tokens& tokens : of_ranks) {
    result.num_tokens += tokens.all;
    result.num_trained += tokens.trained;
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> TrainingStep::Run(const StepInputs& inputs) {
  StepResult result;
  FOREBAY_RETURN_IF_ERROR(AddTokens(inputs.batches, result));
  // Loss and gradients are means over all trained tokens of the step, not means of micro-batch
  // means.
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, result.num_trained));
  const double no_limit = std::numeric_limits<double>::infinity();
  const auto scalars_of = [&](double norm) { return inputs.scalars_of(norm / inputs.loss_scale); };
  FOREBAY_RETURN_IF_ERROR(
      BeginStep({scalars_of, inputs.clip > 0 ? inputs.clip * inputs.loss_scale : no_limit}));
  StepGradients gradients;
  while (true) {
    FOREBAY_RETURN_IF_ERROR(RunPass(inputs, scale * inputs.loss_scale));
    FOREBAY_ASSIGN_OR_RETURN(const double loss_sum, LossSum(inputs.batches));
    const double first_loss = std::exchange(result.loss, loss_sum * scale);
    if (layers_->step_was_repeated() && result.loss != first_loss) {
      return absl::InternalError(fmt::format(
          "a step that was computed twice has the loss {}, and had {}: nothing of it is applied. "
          "Resume, and report this; --gradients=hold does without",
          result.loss, first_loss));
    }
    const TraceScope trace("finish backward");
    FOREBAY_ASSIGN_OR_RETURN(gradients, layers_->FinishBackward());
    if (!gradients.must_repeat || !std::isfinite(result.loss)) break;
    FOREBAY_RETURN_IF_ERROR(layers_->BeginRepeat());
  }
  result.gradient_norm = gradients.norm / inputs.loss_scale;
  result.first_nonfinite_layer = gradients.first_nonfinite_layer;
  return result;
}

}  // namespace forebay
