// One training step: the picture of the design in code. Layer by layer, every layer once forward
// and once backward however many micro-batches there are; finished gradients go to the optimizer,
// which updates each layer when the next step's forward pass brings it in.
//
// Not for: I/O, threads or tiers (they are behind ParamSource and the optimizer), or the order of
// data (trainer.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/data/micro_batch.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/decoder.h"
#include "forebay/model/param_source.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/window/step_schedule.h"
#include "forebay/train/plan/step_memory.h"

namespace forebay {

struct StepResult {
  double loss = 0;           // mean over the step's trained tokens
  double gradient_norm = 0;  // before clipping, of the loss as it is
  int first_nonfinite_layer = -1;
  bool speculation_is_complete = true;  // as GradientStats has it
  int64_t num_tokens = 0;               // without padding
  int64_t num_trained = 0;
};

// Owned by the training thread. Everything pointed to must outlive it.
class TrainingStep {
 public:
  // `schedule`: of the plan; the decoder's own orders. `tokens_per_step`: the most tokens (padding
  // included) of all micro-batches together.
  static absl::StatusOr<TrainingStep> Create(Decoder* decoder, ParamSource* source,
                                             OffloadedOptimizer* optimizer,
                                             const StepSchedule& schedule, int64_t tokens_per_step,
                                             MemoryBudget* budget);

  struct Hooks {
    // Called once, when every update of the previous step has been applied: the moment to commit
    // it.
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

  // The memory of the activation checkpoints, which nobody uses between steps: lent to evaluation.
  std::span<float> idle_activations() { return checkpoints_.As<float>(); }

 private:
  TrainingStep() = default;
  absl::Status Forward(std::span<const MicroBatch> batches, const Hooks& hooks);
  absl::StatusOr<double> LossAndHead(std::span<const MicroBatch> batches, double scale,
                                     const Hooks& hooks);
  absl::Status Backward(std::span<const MicroBatch> batches, const Hooks& hooks);
  // Input of block `block` (or of the head, for block == num_layers) for one micro-batch.
  std::span<float> Checkpoint(int block, size_t batch) const;
  std::span<float> ActivationGradient(size_t batch) const;
  std::span<float> ZeroedGradient(const HostBuffer& buffer, int layer) const;

  Decoder* decoder_ = nullptr;
  ParamSource* source_ = nullptr;
  OffloadedOptimizer* optimizer_ = nullptr;
  int64_t tokens_per_step_ = 0;
  std::vector<int64_t> first_token_;  // of each micro-batch within the step, and one past the last
  StepSchedule schedule_;
  std::vector<int> accesses_;  // of the schedule
  HostBuffer checkpoints_;
  HostBuffer activation_gradient_;
  HostBuffer block_gradient_;
  HostBuffer large_gradient_;
};

}  // namespace forebay
