// Forward and backward of a step whose gradients are applied while the backward pass goes on,
// before their norm is known (Placement::speculative): in the hope that nothing will be clipped.
// Where it is, all of that is undone and the step is computed again, with the norm that is known by
// then. Weights, data and arithmetic are the same, so the gradients are.
//
// Not for: what is done with the result (trainer.cc).
#pragma once

#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/train/step/run_session.h"
#include "forebay/train/step/training_step.h"

namespace forebay {

struct SpeculativeStepInputs {
  std::span<const MicroBatch> batches;
  double loss_scale = 1;
  double clip = 0;  // as TrainOptions has it
  TrainingStep::Hooks hooks;
  // Of the update that follows a step with this norm.
  std::function<UpdateScalars(double gradient_norm)> scalars_of;
  // TensorStore::BeginWriting.
  std::function<absl::Status()> begin_writing;
};

// Owned by the training thread.
class SpeculativeStep {
 public:
  explicit SpeculativeStep(RunSession* session) : session_(session) {}  // outlives this

  // As TrainingStep::Run. On success with finite gradients OffloadedOptimizer::BeginUpdate may
  // follow with `scalars_of` the result's norm; otherwise AbandonStep has to. absl::InternalError
  // when the second time gave another norm.
  absl::StatusOr<StepResult> Run(const SpeculativeStepInputs& inputs);
  // Whether the last step was computed a second time.
  bool computed_twice() const { return computed_twice_; }

 private:
  absl::StatusOr<StepResult> RunHoping(const SpeculativeStepInputs& inputs,
                                       const UpdateScalars& scalars, double most_norm);

  RunSession* const session_;
  // Steps that are clipped come in rows: after one nothing is applied until the norm is known. Only
  // speed depends on it.
  bool hopes_ = true;
  bool computed_twice_ = false;
};

}  // namespace forebay
