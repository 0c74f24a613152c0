// One training step: every layer once forward and once backward, however many micro-batches there
// are. Finished gradients go to the layer session. A step whose speculative update failed is
// computed a second time.
//
// Not for: the order of operations (step/step_schedule.h), their arithmetic (LayerCompute), I/O,
// threads or tiers (behind LayerSession), or the order of data (trainer.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/collective/communicator.h"
#include "forebay/data/micro_batch.h"
#include "forebay/offload/layer_session.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/param_source.h"
#include "forebay/step/step_schedule.h"

namespace forebay {

struct StepResult {
  double loss = 0;           // mean over the step's trained tokens
  double gradient_norm = 0;  // before clipping, of the loss as it is
  int first_nonfinite_layer = -1;
  int64_t num_tokens = 0;  // without padding
  int64_t num_trained = 0;
};

struct StepInputs {
  std::span<const MicroBatch> batches;
  double loss_scale = 1;
  double clip = 0;  // as TrainOptions has it
  // The scalars of the update that follows a step with this norm.
  std::function<UpdateScalars(double gradient_norm)> scalars_of;
  // Called between forward and backward; a failure ends the pass. May be empty.
  std::function<absl::Status()> before_backward;
  // Called between layers with the fraction of the pass that is done; a failure ends it. May be
  // empty.
  std::function<absl::Status(double fraction)> progress;
};

// Owned by the training thread.
class TrainingStep {
 public:
  // `schedule`: of the plan. Everything pointed to must outlive this.
  // `source`: of weights for `compute`: the session, or a window over it. `activations`: where the
  // schedule spills them; nullptr: it spills none. `ranks`: each of which has a part of the step's
  // batches; nullptr: one has all.
  TrainingStep(const StepSchedule& schedule, LayerCompute* compute, ParamSource* source,
               ActivationStorage* activations, LayerSession* layers, Communicator* ranks)
      : compute_(compute),
        source_(source),
        activations_(activations),
        layers_(layers),
        ranks_(ranks),
        walk_(schedule.operations) {}

  // On success every gradient, of the loss times the loss scale, is with the session, whose Update,
  // Skip or Abandon follows. On failure Abandon does.
  absl::StatusOr<StepResult> Run(const StepInputs& inputs);

 private:
  // Forward and backward over the batches.
  absl::Status RunPass(const StepInputs& inputs, double gradient_scale);
  absl::Status BeginStep(StepUpdate update);
  absl::StatusOr<double> LossSum(std::span<const MicroBatch> batches) const;
  // Adds the tokens of all ranks, in their order.
  absl::Status AddTokens(std::span<const MicroBatch> batches, StepResult& result) const;

  LayerCompute* const compute_;
  ParamSource* const source_;
  ActivationStorage* const activations_;
  LayerSession* const layers_;
  Communicator* const ranks_;
  LayerWalk walk_;
};

}  // namespace forebay
