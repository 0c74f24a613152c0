// A pass whose micro-batches belong to parts (MicroBatch::part) that are computed apart: each by
// who has a GPU of its own, or on the CPU one after the other. The gradients of the parts are added
// in their order. So a step has the bits of one that as many ranks compute, each with one part.
//
// Whoever computes on a GPU leaves the work there: the calls for the parts of a layer follow each
// other at once, and the GPUs work side by side.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/data/micro_batch.h"
#include "forebay/offload/ranks/part_gradients.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"

namespace forebay {

// Owned by one thread.
class DividedCompute final : public LayerCompute {
 public:
  // A layer's weights where the part is computed. Empty: where those of the first are.
  using WeightsOfPart = std::function<LayerWeights(size_t part, int layer)>;

  // layer begins with the loss and is complete with the layer's own.
  DividedCompute(std::vector<LayerCompute*> parts, std::unique_ptr<PartGradients> gradients,
                 WeightsOfPart weights_of_part);

  // The micro-batches of a part are together, the parts in order. Parts without any do not take
  // part in the pass, which then may have no backward operations.
  absl::Status BeginPass(std::span<const MicroBatch> batches, double gradient_scale) override;
  size_t num_micro_batches() const override { return of_batch_.size(); }
  absl::Status Forward(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Loss(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status LossAndGradient(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Recompute(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Backward(int layer, const HeldWeights& held, size_t batch) override;
  void Save(int layer) override;
  void Keep(int layer) override;
  void Drop(int layer) override;
  // As it was added behind the layer's last micro-batch. Requires: that was of this layer.
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& weights,
                                                            int64_t first_elem) override;
  // By the first part; of the others whoever lends weights to them asks itself.
  Event* WeightsAreUsed(int layer) override { return parts_.front()->WeightsAreUsed(layer); }
  absl::StatusOr<double> LossSumOf(size_t batch) override;

 private:
  using Call = absl::Status (LayerCompute::*)(int layer, const HeldWeights& weights, size_t batch);
  // One of the pass's, and its number among those of its part.
  struct BatchOfPart {
    size_t part = 0;
    size_t batch = 0;
  };
  absl::Status Do(Call call, int layer, const HeldWeights& held, size_t batch);
  absl::Status AddBehind(int layer, const HeldWeights& held, size_t batch);
  template <typename Each>
  void ForActive(const Each& each);

  const std::vector<LayerCompute*> parts_;
  const std::unique_ptr<PartGradients> gradients_;
  const WeightsOfPart weights_of_part_;
  std::vector<WeightsLease> leases_;        // of a part that is not the first, during a call
  std::vector<LayerGradient> to_be_added_;  // by part
  // The pass:
  std::vector<BatchOfPart> of_batch_;
  std::vector<uint8_t> is_active_;  // by part
  int added_layer_ = -1;            // whose gradients were added last
};

// The activations of all parts: what is asked for is asked of each. They have no common buffers.
class DividedActivations final : public ActivationStorage {
 public:
  explicit DividedActivations(std::vector<ActivationStorage*> parts) : parts_(std::move(parts)) {}
  std::span<std::byte> buffers() const override { return {}; }
  int num_buffers() const override { return parts_.front()->num_buffers(); }
  void StartWrite(int place) override;
  void StartRead(int place) override;
  absl::Status Await(int place) override;
  void Abandon() override;

 private:
  const std::vector<ActivationStorage*> parts_;
};

}  // namespace forebay
