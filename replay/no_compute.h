// A model of which nothing is computed: its layers are read and their gradients handed over as in a
// run, with numbers that were made beforehand. For measurements alone.
#pragma once

#include <span>

#include "forebay/base/tensor_spec.h"
#include "forebay/step/layer_compute.h"

namespace forebay {

class NoCompute : public LayerCompute {
 public:
  // `gradient`: of the largest layer; every layer's is its beginning. Both must outlive this.
  NoCompute(const Inventory* inventory, std::span<const float> gradient)
      : inventory_(*inventory), gradient_(gradient) {}

  absl::Status BeginPass(std::span<const MicroBatch> /*batches*/, double /*scale*/) override {
    return absl::OkStatus();
  }
  size_t num_micro_batches() const override { return 1; }
  absl::Status Forward(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  absl::Status Loss(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  absl::Status LossAndGradient(int, const HeldWeights&, size_t) override {
    return absl::OkStatus();
  }
  absl::Status Recompute(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  absl::Status Backward(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  void Save(int) override {}
  void Keep(int) override {}
  void Drop(int) override {}
  LayerGradient GradientOf(int layer) override {
    return {.elems = gradient_.first(static_cast<size_t>(inventory_.layers()[layer].num_elems))};
  }
  Event* WeightsAreUsed(int) override { return nullptr; }
  absl::StatusOr<double> LossSumOf(size_t) override { return 0.0; }

 private:
  const Inventory& inventory_;
  const std::span<const float> gradient_;
};

}  // namespace forebay
