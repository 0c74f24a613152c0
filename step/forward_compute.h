// A computation that goes forward alone: for lists without backward operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "forebay/base/check.h"
#include "forebay/step/layer_compute.h"

namespace forebay {

class ForwardCompute : public LayerCompute {
 public:
  absl::Status BeginPass(std::span<const MicroBatch> /*batches*/, double /*scale*/) override {
    return NotInList();
  }
  absl::Status LossAndGradient(int /*layer*/, const HeldWeights& /*weights*/,
                               size_t /*batch*/) override {
    return NotInList();
  }
  absl::Status Recompute(int /*layer*/, const HeldWeights& /*weights*/, size_t /*batch*/) override {
    return NotInList();
  }
  absl::Status Backward(int /*layer*/, const HeldWeights& /*weights*/, size_t /*batch*/) override {
    return NotInList();
  }
  void Keep(int /*layer*/) override { NotInList().IgnoreError(); }
  void Drop(int /*layer*/) override { NotInList().IgnoreError(); }
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int /*layer*/,
                                                            const HeldWeights& /*weights*/,
                                                            int64_t /*first_elem*/) override {
    return NotInList();
  }
  absl::StatusOr<double> LossSumOf(size_t /*batch*/) override { return NotInList(); }

 private:
  // A list that asks for it is a bug of ours.
  static absl::Status NotInList() {
    FOREBAY_CHECK(false);
    return absl::InternalError("");
  }
};

}  // namespace forebay
