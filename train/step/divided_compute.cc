#include "forebay/train/step/divided_compute.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

DividedCompute::DividedCompute(std::vector<LayerCompute*> parts,
                               std::unique_ptr<PartGradients> gradients,
                               WeightsOfPart weights_of_part)
    : parts_(std::move(parts)),
      gradients_(std::move(gradients)),
      weights_of_part_(std::move(weights_of_part)),
      to_be_added_(parts_.size()),
      is_active_(parts_.size()) {
  FOREBAY_CHECK(parts_.size() >= 2);
}

absl::Status DividedCompute::BeginPass(std::span<const MicroBatch> batches, double gradient_scale) {
  of_batch_.clear();
  std::ranges::fill(is_active_, uint8_t{0});
  while (of_batch_.size() < batches.size()) {
    const std::span<const MicroBatch> left = batches.subspan(of_batch_.size());
    const auto part = static_cast<size_t>(left.front().part);
    const auto end = std::ranges::find_if(
        left, [&](const MicroBatch& batch) { return batch.part != left.front().part; });
    const std::span<const MicroBatch> own = left.first(static_cast<size_t>(end - left.begin()));
    FOREBAY_CHECK(part < parts_.size() && is_active_[part] == 0);
    is_active_[part] = 1;
    FOREBAY_RETURN_IF_ERROR(parts_[part]->BeginPass(own, gradient_scale));
    for (size_t batch = 0; batch < own.size(); ++batch) of_batch_.push_back({part, batch});
  }
  return absl::OkStatus();
}

absl::Status DividedCompute::Do(Call call, int layer, const HeldWeights& held, size_t batch) {
  const auto [part, own] = of_batch_[batch];
  if (part == 0 || weights_of_part_ == nullptr) return (parts_[part]->*call)(layer, held, own);
  leases_.clear();
  for (const WeightsLease& lease : held.leases()) {
    leases_.emplace_back(/*source=*/nullptr, lease.layer(), weights_of_part_(part, lease.layer()));
  }
  return (parts_[part]->*call)(layer, HeldWeights(leases_), own);
}

// The gradients of the layer, which are complete with its last micro-batch.
absl::Status DividedCompute::AddBehind(int layer, const HeldWeights& held, size_t batch) {
  if (batch + 1 < of_batch_.size()) return absl::OkStatus();
  for (size_t part = 0; part < parts_.size(); ++part) {
    FOREBAY_CHECK(is_active_[part] != 0);
    FOREBAY_ASSIGN_OR_RETURN(const std::optional<LayerGradient> of_part,
                             parts_[part]->GradientFrom(layer, held, /*first_elem=*/0));
    to_be_added_[part] = *of_part;
  }
  added_layer_ = layer;
  return gradients_->Add(to_be_added_);
}

absl::StatusOr<std::optional<LayerGradient>> DividedCompute::GradientFrom(
    int layer, const HeldWeights& /*weights*/, int64_t first_elem) {
  FOREBAY_CHECK(layer == added_layer_);
  if (first_elem > 0) return std::nullopt;
  return gradients_->Sum();
}

absl::Status DividedCompute::Forward(int layer, const HeldWeights& held, size_t batch) {
  return Do(&LayerCompute::Forward, layer, held, batch);
}

absl::Status DividedCompute::Loss(int layer, const HeldWeights& held, size_t batch) {
  return Do(&LayerCompute::Loss, layer, held, batch);
}

absl::Status DividedCompute::LossAndGradient(int layer, const HeldWeights& held, size_t batch) {
  FOREBAY_RETURN_IF_ERROR(Do(&LayerCompute::LossAndGradient, layer, held, batch));
  return AddBehind(layer, held, batch);
}

absl::Status DividedCompute::Recompute(int layer, const HeldWeights& held, size_t batch) {
  return Do(&LayerCompute::Recompute, layer, held, batch);
}

absl::Status DividedCompute::Backward(int layer, const HeldWeights& held, size_t batch) {
  FOREBAY_RETURN_IF_ERROR(Do(&LayerCompute::Backward, layer, held, batch));
  return AddBehind(layer, held, batch);
}

template <typename Each>
void DividedCompute::ForActive(const Each& each) {
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (is_active_[part] != 0) each(*parts_[part]);
  }
}

void DividedCompute::Save(int layer) {
  ForActive([&](LayerCompute& part) { part.Save(layer); });
}

void DividedCompute::Keep(int layer) {
  ForActive([&](LayerCompute& part) { part.Keep(layer); });
}

void DividedCompute::Drop(int layer) {
  ForActive([&](LayerCompute& part) { part.Drop(layer); });
}

absl::StatusOr<double> DividedCompute::LossSumOf(size_t batch) {
  const auto [part, own] = of_batch_[batch];
  return parts_[part]->LossSumOf(own);
}

// ---- Activations --------------------------------------------------------------------------------

void DividedActivations::StartWrite(int place) {
  for (ActivationStorage* const part : parts_) part->StartWrite(place);
}

void DividedActivations::StartRead(int place) {
  for (ActivationStorage* const part : parts_) part->StartRead(place);
}

absl::Status DividedActivations::Await(int place) {
  absl::Status status;
  for (ActivationStorage* const part : parts_) status.Update(part->Await(place));
  return status;
}

void DividedActivations::Abandon() {
  for (ActivationStorage* const part : parts_) part->Abandon();
}

}  // namespace forebay
