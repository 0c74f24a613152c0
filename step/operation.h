// A pass over the layers of a model is a list of operations. LayerWalk runs the list, and whoever
// wants to know what it costs walks it too.
#pragma once

#include <cstdint>
#include <string_view>

namespace forebay {

// Each is done for one layer. Those of the computation are done for every micro-batch in turn;
// kRecompute and the kBackward behind it, for one micro-batch after the other.
enum class OperationKind : uint8_t {
  kRead,     // acquires the layer's weights, which come from NVMe where they are not in RAM
  kRelease,  // gives them back
  kSave,     // has the layer's kForward save what its kBackward needs of it: kRecompute then
             // computes less
  kForward,  // computes the layer's activation from that of the layer before
  kLoss,     // computes what the last layer makes: the loss, or logits
  kLossAndGradient,  // computes the loss, and the gradients of the last layer and of its input
  kKeep,             // keeps the layer's activation until kDrop; otherwise the next layer takes it
  kDrop,             // gives up an activation that was kept
  kSpill,            // starts writing an activation that was kept to where it waits on disk
  kFetch,            // starts reading it back: it is there when the kBackward, or the kForward of
                     // a segment, that needs it begins
  kRecompute,        // computes again what the layer's kBackward needs of its forward pass
  kBackward,  // turns the gradient of the layer's activation into that of its input, and adds
              // to the gradients of its weights
  kHand,      // hands the complete gradients of its weights to the optimizer
  kUpdate,    // applies the update of the layer's weights
  kWrite,     // starts writing what the update has changed
  kCommit,    // makes the step before durable, if it is one that is committed
};

constexpr std::string_view NameOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kRead:
      return "read";
    case OperationKind::kRelease:
      return "release";
    case OperationKind::kSave:
      return "save";
    case OperationKind::kForward:
      return "forward";
    case OperationKind::kLoss:
      return "loss";
    case OperationKind::kLossAndGradient:
      return "loss and gradient";
    case OperationKind::kKeep:
      return "keep";
    case OperationKind::kDrop:
      return "drop";
    case OperationKind::kSpill:
      return "spill";
    case OperationKind::kFetch:
      return "fetch";
    case OperationKind::kRecompute:
      return "recompute";
    case OperationKind::kBackward:
      return "backward";
    case OperationKind::kHand:
      return "hand";
    case OperationKind::kUpdate:
      return "update";
    case OperationKind::kWrite:
      return "write";
    case OperationKind::kCommit:
      return "commit";
  }
  return "?";
}

struct Operation {
  OperationKind kind = OperationKind::kRead;
  int layer = -1;  // -1: of kCommit

  friend bool operator==(const Operation&, const Operation&) = default;
};

}  // namespace forebay
