// How gradients are handed over: whole, in parts, tensor by tensor. The rest of the class is in
// layer_session.cc.
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/offload/layer_session.h"
#include "forebay/offload/open_layers.h"

namespace forebay {

absl::Status LayerSession::CheckHand(int layer) const {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "the gradient of a layer"));
  FOREBAY_RETURN_IF_ERROR(CheckOrder(layer));
  if (!open_layers_->IsOpen(layer)) return absl::OkStatus();
  return UsageError(
      fmt::format("the gradient of '{}' is being summed tensor by tensor. Close the layer instead",
                  store_->inventory().layers()[layer].name));
}

absl::Status LayerSession::Hand(const LayerGradient& gradient) {
  FOREBAY_RETURN_IF_ERROR(CheckHand(gradient.layer));
  return HandOver(gradient);
}

absl::Status LayerSession::CheckNoPartIsMissing(std::string_view call) const {
  const NextGradient next = optimizer_->next_gradient();
  // Pieces of a sum over ranks are parts for the optimizer, and none of the caller's.
  if (next.layer < 0 || sum_ != nullptr) return absl::OkStatus();
  return UsageError(
      fmt::format("{} comes between parts of the gradient of '{}', from element {} on. Hand those "
                  "over first",
                  call, store_->inventory().layers()[next.layer].name, next.first_elem));
}

absl::Status LayerSession::CheckHandToRanks(const LayerGradient& gradient) const {
  const int64_t num_elems = layers_of_caller().layers()[gradient.layer].num_elems;
  if (gradient.first_elem != 0 || gradient.num_elems() != num_elems ||
      gradient.dtype != DType::kF32) {
    return UsageError(fmt::format(
        "the gradient of '{}' has the elements {} to {}, of {}, and a session of several ranks "
        "takes whole layers in fp32: {} elements",
        store_->inventory().layers()[gradient.layer].name, gradient.first_elem, gradient.end_elem(),
        forebay::NameOf(gradient.dtype), num_elems));
  }
  if (!gradient.missing.empty() && options_.num_open_layers == 0) {
    return UsageError(
        "a session of several ranks that takes whole layers has a gradient of every tensor: hand "
        "over zeros");
  }
  if (gradient.device != DeviceKind::kHost && options_.device == nullptr) {
    return UsageError(
        "the gradient of a layer is handed over on a device, and the session was made without "
        "one. Make it with the device, or copy the gradient to memory first");
  }
  return absl::OkStatus();
}

absl::Status LayerSession::HandOver(const LayerGradient& gradient) {
  FOREBAY_RETURN_IF_ERROR(UpdatesOfTheStepBefore());
  const int layer = gradient.layer;
  if (sum_ == nullptr) {
    FOREBAY_RETURN_IF_ERROR(optimizer_->Hand(gradient, *pool_));
    if (optimizer_->next_gradient().layer < 0) MarkHanded(layer);
    return absl::OkStatus();
  }
  FOREBAY_RETURN_IF_ERROR(CheckHandToRanks(gradient));
  FOREBAY_RETURN_IF_ERROR(HandSum());
  FOREBAY_RETURN_IF_ERROR(sum_->Start(gradient));
  while (sum_->NeedsGradient()) FOREBAY_RETURN_IF_ERROR(HandPieceOfSum());
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
  const absl::StatusOr<LayerGradient> piece = [&] {
    const TraceScope trace(Activity::kRanks);
    return sum_->Await();
  }();
  own_waits_[Activity::kRanks] += watch.Seconds();
  FOREBAY_RETURN_IF_ERROR(piece.status());
  if (piece->bytes.empty() && piece->first_elem > 0) return absl::OkStatus();
  return optimizer_->Hand(*piece, *pool_);
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
  FOREBAY_ASSIGN_OR_RETURN(const LayerGradient sum,
                           open_layers_->SumOf(layer, /*in_fp32=*/sum_ != nullptr));
  FOREBAY_RETURN_IF_ERROR(HandOver(sum));
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
