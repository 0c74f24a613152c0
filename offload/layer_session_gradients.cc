// Gradients that come tensor by tensor. The rest of the class is in layer_session.cc.
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/offload/layer_session.h"
#include "forebay/offload/open_layers.h"

namespace forebay {

absl::Status LayerSession::ExpectGradient(int tensor, DType dtype, int64_t num_bytes) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "the gradient of a tensor"));
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
