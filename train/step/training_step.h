// One training step: every layer once forward and once backward, however many micro-batches there
// are. Finished gradients go to the optimizer.
//
// Not for: the order of operations (step/step_schedule.h), their arithmetic (LayerCompute), I/O,
// threads or tiers (behind ParamSource and the optimizer), or the order of data (trainer.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/parallel.h"
#include "forebay/data/micro_batch.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/param_source.h"
#include "forebay/step/step_schedule.h"

namespace forebay {

struct StepResult {
  double loss = 0;           // mean over the step's trained tokens
  double gradient_norm = 0;  // before clipping, of the loss as it is
  int first_nonfinite_layer = -1;
  bool speculation_is_complete = true;  // as GradientStats has it
  int64_t num_tokens = 0;               // without padding
  int64_t num_trained = 0;
};

// Owned by the training thread.
class TrainingStep {
 public:
  // `schedule`: of the plan. `pool` rounds gradients. Everything pointed to must outlive this.
  TrainingStep(const StepSchedule& schedule, LayerCompute* compute, ParamSource* source,
               OffloadedOptimizer* optimizer, ThreadPool* pool)
      : compute_(compute),
        source_(source),
        optimizer_(optimizer),
        pool_(pool),
        walk_(schedule.operations) {}

  struct Hooks {
    // Called once, when every update of the previous step has been applied, but for delayed ones:
    // the moment to commit it.
    std::function<absl::Status()> previous_step_applied;
    // Called between layers with the fraction of the step that is done; a failure abandons the
    // step.
    std::function<absl::Status(double fraction)> progress;
  };
  // Forward and backward over `batches`; on success every gradient, of the loss times
  // `loss_scale`, is with the optimizer and the next call to OffloadedOptimizer::BeginUpdate makes
  // the step real.
  absl::StatusOr<StepResult> Run(std::span<const MicroBatch> batches, double loss_scale,
                                 const Hooks& hooks);

 private:
  LayerCompute* const compute_;
  ParamSource* const source_;
  OffloadedOptimizer* const optimizer_;
  ThreadPool* const pool_;
  LayerWalk walk_;
};

}  // namespace forebay
