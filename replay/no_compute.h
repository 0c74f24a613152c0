// A model of which nothing is computed: its layers are read and their gradients handed over as in a
// run, with numbers that were made beforehand. For measurements alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "forebay/base/errors.h"
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
  absl::Status Forward(int layer, const HeldWeights& weights, size_t) override {
    return ReadPieces(weights.Of(layer).pieces);
  }
  absl::Status Loss(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  // As model/decoder_compute_pieces.cc.
  absl::Status LossAndGradient(int layer, const HeldWeights& weights, size_t) override {
    WeightPieces* const own = weights.Of(layer).pieces;
    if (own != nullptr) FOREBAY_RETURN_IF_ERROR(own->Get(own->num_pieces() - 1).status());
    for (const WeightsLease& lease : weights.leases()) {
      for (int pass = 0; pass < 2; ++pass) {
        FOREBAY_RETURN_IF_ERROR(ReadPieces(lease.weights().pieces));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Recompute(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  absl::Status Backward(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  void Save(int) override {}
  void Keep(int) override {}
  void Drop(int) override {}
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& weights,
                                                            int64_t first_elem) override {
    const int64_t num_elems = inventory_.layers()[layer].num_elems;
    if (first_elem == num_elems) return std::nullopt;
    for (const WeightsLease& lease : weights.leases()) {
      if (lease.layer() != layer) continue;
      FOREBAY_RETURN_IF_ERROR(ReadPieces(lease.weights().pieces));
    }
    return Fp32Gradient(layer, gradient_.first(static_cast<size_t>(num_elems)));
  }
  Event* WeightsAreUsed(int) override { return nullptr; }
  absl::StatusOr<double> LossSumOf(size_t) override { return 0.0; }

 private:
  // nullptr: the layer is there as a whole.
  static absl::Status ReadPieces(WeightPieces* pieces) {
    for (int piece = 0; pieces != nullptr && piece < pieces->num_pieces(); ++piece) {
      FOREBAY_RETURN_IF_ERROR(pieces->Get(piece).status());
    }
    return absl::OkStatus();
  }

  const Inventory& inventory_;
  const std::span<const float> gradient_;
};

}  // namespace forebay
