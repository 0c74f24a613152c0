// LayerCompute is the model as a pass over its layers sees it. Who implements it owns its
// activations and gradients; a pass only names them, by layer and micro-batch, so that they may lie
// in RAM, on a GPU, or nowhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/check.h"
#include "forebay/device/device.h"
#include "forebay/step/layer_gradient.h"
#include "forebay/step/param_source.h"

namespace forebay {

struct MicroBatch;  // data/micro_batch.h

// The weights that a pass holds at this moment.
class HeldWeights {
 public:
  explicit HeldWeights(std::span<const WeightsLease> leases) : leases_(leases) {}
  // Requires: the schedule has read them and not released them.
  const LayerWeights& Of(int layer) const;
  std::span<const WeightsLease> leases() const { return leases_; }

 private:
  std::span<const WeightsLease> leases_;
};

// Each call may leave its work on a device: errors of that work show in a later call. Owned by one
// thread.
class LayerCompute {
 public:
  virtual ~LayerCompute() = default;

  // A pass over these begins, of which there is at least one; they are borrowed until the pass has
  // ended. Gradients will be those of the sum of losses times `gradient_scale`.
  virtual absl::Status BeginPass(std::span<const MicroBatch> batches, double gradient_scale) = 0;
  virtual size_t num_micro_batches() const = 0;

  // As OperationKind has it.
  virtual absl::Status Forward(int layer, const HeldWeights& weights, size_t batch) = 0;
  virtual absl::Status Loss(int layer, const HeldWeights& weights, size_t batch) = 0;
  virtual absl::Status LossAndGradient(int layer, const HeldWeights& weights, size_t batch) = 0;
  // The two come in turn for each micro-batch.
  virtual absl::Status Recompute(int layer, const HeldWeights& weights, size_t batch) = 0;
  virtual absl::Status Backward(int layer, const HeldWeights& weights, size_t batch) = 0;
  // A list has it only where whoever computes can.
  virtual void Save(int /*layer*/) { FOREBAY_CHECK(false); }
  virtual void Keep(int layer) = 0;
  virtual void Drop(int layer) = 0;

  // After the layer's backward pass: its gradient from `first_elem` on (fp32), all of it or a part,
  // in memory that the next call may use again. nullopt: that was all. `weights`: those that the
  // loss needs of the layer. Only the elements of the part are read of them: those of parts before
  // may be updated by now (UpdateTime::kAfterHand).
  virtual absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer,
                                                                    const HeldWeights& weights,
                                                                    int64_t first_elem) = 0;
  // When all that was asked for so far no longer reads the layer's weights; nullptr: now. The event
  // lives as long as this, which outlives the source of the weights.
  virtual Event* WeightsAreUsed(int layer) = 0;
  // Waits for the micro-batch's loss: the sum over its trained tokens, nats.
  virtual absl::StatusOr<double> LossSumOf(size_t batch) = 0;
};

}  // namespace forebay
