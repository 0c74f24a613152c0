// How gradients are handed over: whole, in parts, tensor by tensor. The rest of the class is in
// layer_session.cc.
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/offload/layer_session.h"
#include "forebay/offload/open_layers.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {

absl::Status LayerSession::CheckHand(int layer) const {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "the gradient of a layer"));
  FOREBAY_RETURN_IF_ERROR(CheckOrder(layer));
  if (!open_layers_->IsOpen(layer)) return absl::OkStatus();
  return UsageError(
      fmt::format("the gradient of '{}' is being summed tensor by tensor. Close the layer instead",
                  store_->inventory().layers()[layer].name));
}

absl::Status LayerSession::Hand(int layer, const LayerGradient& gradient,
                                std::span<const int> without_gradient) {
  FOREBAY_RETURN_IF_ERROR(CheckHand(layer));
  FOREBAY_RETURN_IF_ERROR(CheckNoPartIsMissing("the gradient of a layer"));
  return HandOver(layer, gradient, without_gradient);
}

absl::Status LayerSession::CheckNoPartIsMissing(std::string_view call) const {
  if (part_layer_ < 0) return absl::OkStatus();
  return UsageError(
      fmt::format("{} comes between parts of the gradient of '{}', from element {} on. Hand those "
                  "over first",
                  call, store_->inventory().layers()[part_layer_].name, next_part_elem_));
}

absl::Status LayerSession::CheckPart(int layer, const LayerGradient& part) const {
  if (sum_ != nullptr) {
    return UsageError("a session of several ranks takes the gradients of whole layers");
  }
  FOREBAY_RETURN_IF_ERROR(CheckHand(layer));
  const int64_t num_elems = std::ssize(part.elems);
  const LayerSpec& spec = store_->inventory().layers()[layer];
  const int next_layer = part_layer_ >= 0 ? part_layer_ : layer;
  if (layer != next_layer || part.first_elem != next_part_elem_) {
    return UsageError(
        fmt::format("a part of the gradient of '{}' from element {} on came, and the next is of "
                    "'{}', from element {} on",
                    spec.name, part.first_elem, store_->inventory().layers()[next_layer].name,
                    next_part_elem_));
  }
  if (num_elems == 0 || num_elems % kNormBlockElems != 0 ||
      num_elems > spec.num_elems - part.first_elem) {
    return UsageError(
        fmt::format("a part of the gradient of '{}' has {} elements: a multiple of {} is wanted, "
                    "at most the {} that are left",
                    spec.name, num_elems, kNormBlockElems, spec.num_elems - part.first_elem));
  }
  return absl::OkStatus();
}

absl::Status LayerSession::HandPart(int layer, const LayerGradient& part) {
  FOREBAY_RETURN_IF_ERROR(CheckPart(layer, part));
  FOREBAY_RETURN_IF_ERROR(UpdatesOfTheStepBefore());
  FOREBAY_RETURN_IF_ERROR(optimizer_->HandPart(layer, part, *pool_));
  const int64_t end_elem = part.first_elem + std::ssize(part.elems);
  const bool is_last = end_elem == store_->inventory().layers()[layer].num_elems;
  part_layer_ = is_last ? -1 : layer;
  next_part_elem_ = is_last ? 0 : end_elem;
  if (is_last) MarkHanded(layer);
  return absl::OkStatus();
}

absl::Status LayerSession::HandOver(int layer, const LayerGradient& gradient,
                                    std::span<const int> without_gradient) {
  FOREBAY_RETURN_IF_ERROR(UpdatesOfTheStepBefore());
  if (sum_ == nullptr) {
    FOREBAY_RETURN_IF_ERROR(optimizer_->Hand(layer, gradient, *pool_, without_gradient));
  } else {
    const int64_t num_elems = layers_of_caller().layers()[layer].num_elems;
    if (std::ssize(gradient.elems) != num_elems) {
      return UsageError(fmt::format("the gradient of '{}' has {} elements, and the layer {}",
                                    store_->inventory().layers()[layer].name, gradient.elems.size(),
                                    num_elems));
    }
    if (!without_gradient.empty() && options_.num_open_layers == 0) {
      return UsageError(
          "a session of several ranks that takes whole layers has a gradient of every tensor: hand "
          "over zeros");
    }
    if (gradient.device != DeviceKind::kHost && options_.device == nullptr) {
      return UsageError(
          "the gradient of a layer is handed over on a device, and the session was made without "
          "one. Make it with the device, or copy the gradient to memory first");
    }
    FOREBAY_RETURN_IF_ERROR(HandSum());
    FOREBAY_RETURN_IF_ERROR(sum_->Start(layer, gradient, without_gradient));
    while (sum_->NeedsGradient()) FOREBAY_RETURN_IF_ERROR(HandPieceOfSum());
  }
  MarkHanded(layer);
  return absl::OkStatus();
}

void LayerSession::MarkHanded(int layer) {
  is_handed_[layer] = 1;
  ++num_handed_;
}

absl::Status LayerSession::HandSum() {
  while (sum_ != nullptr && sum_->IsUnderWay()) FOREBAY_RETURN_IF_ERROR(HandPieceOfSum());
  return absl::OkStatus();
}

absl::Status LayerSession::HandPieceOfSum() {
  const Stopwatch watch;
  const absl::StatusOr<GradientSum::Piece> piece = [&] {
    const TraceScope trace(Activity::kRanks);
    return sum_->Await();
  }();
  own_waits_[Activity::kRanks] += watch.Seconds();
  FOREBAY_RETURN_IF_ERROR(piece.status());
  if (piece->elems.empty() && piece->first_elem > 0) return absl::OkStatus();
  return optimizer_->HandPart(piece->layer, {piece->first_elem, piece->elems}, *pool_,
                              piece->without_gradient);
}

// ---- Tensor by tensor --------------------------------------------------------------------------

absl::Status LayerSession::ExpectGradient(int tensor, DType dtype, int64_t num_bytes) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "the gradient of a tensor"));
  FOREBAY_RETURN_IF_ERROR(CheckNoPartIsMissing("the gradient of a tensor"));
  const std::vector<TensorSpec>& tensors = store_->inventory().tensors();
  const bool is_known = tensor >= 0 && tensor < static_cast<int>(tensors.size());
  if (is_known && !tensors[tensor].raw && is_handed_[tensors[tensor].layer]) {
    return UsageError(fmt::format(
        "the gradient of '{}' comes after its layer was closed or handed over. Close a layer when "
        "no more of it comes",
        tensors[tensor].name));
  }
  return open_layers_->OpenFor(tensor, dtype, num_bytes);
}

absl::Status LayerSession::AddGradient(int tensor, DType dtype, std::span<const std::byte> elems) {
  FOREBAY_RETURN_IF_ERROR(ExpectGradient(tensor, dtype, std::ssize(elems)));
  return open_layers_->Add(tensor, dtype, elems, *pool_);
}

absl::Status LayerSession::HandOpen(int layer) {
  FOREBAY_RETURN_IF_ERROR(CheckNoPartIsMissing("closing a layer"));
  FOREBAY_RETURN_IF_ERROR(CheckOrder(layer));
  FOREBAY_ASSIGN_OR_RETURN(const OpenLayers::Sum sum,
                           open_layers_->SumOf(layer, /*in_fp32=*/sum_ != nullptr));
  if (sum.as_handed.empty()) {
    FOREBAY_RETURN_IF_ERROR(
        HandOver(layer, LayerGradient{.elems = sum.elems}, sum.without_gradient));
  } else {
    FOREBAY_RETURN_IF_ERROR(UpdatesOfTheStepBefore());
    FOREBAY_RETURN_IF_ERROR(
        optimizer_->Hand(layer, RoundedGradient{sum.as_handed}, *pool_, sum.without_gradient));
    MarkHanded(layer);
  }
  open_layers_->Close(layer);
  return absl::OkStatus();
}

absl::Status LayerSession::CloseLayer(int layer) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "CloseLayer"));
  FOREBAY_RETURN_IF_ERROR(CheckLayer(layer));
  // Layers that come before it and got nothing, where the order counts.
  while (keeps_order_ && num_handed_ < hand_over_order_.size()) {
    const int next = hand_over_order_[num_handed_];
    if (next == layer || open_layers_->IsOpen(next) || !open_layers_->IsOpen(layer)) break;
    FOREBAY_RETURN_IF_ERROR(HandOpen(next));
  }
  return HandOpen(layer);
}

// Those that are open, and those that got no gradient at all, whose tensors are left alone.
absl::Status LayerSession::CloseLayers() {
  for (const bool is_open : {true, false}) {
    for (const int layer : hand_over_order_) {
      if (options_.num_open_layers == 0 || is_handed_[layer]) continue;
      if (is_open && !keeps_order_ && !open_layers_->IsOpen(layer)) continue;
      FOREBAY_RETURN_IF_ERROR(HandOpen(layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
