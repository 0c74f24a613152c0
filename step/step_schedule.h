// The operations of a training step, and of the passes that are parts of one. Pure.
//
// Not for: running them (layer_walk.h), or the bytes that they cost (swap/window/step_transfers.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "forebay/step/operation.h"

namespace forebay {

// When a layer is updated.
enum class UpdateTime : uint8_t {
  kOnRead,         // when the next step's forward pass reads it
  kAfterHand,      // when its gradients are complete, before all norms are known
  kAfterNextHand,  // when those of the next step are complete, which does not see the update
};

struct StepSchedule {
  // From the moment when the norm of a step's gradients is known to the same moment of the next.
  std::vector<Operation> operations;

  // The layers whose weights are read, in order: for one announcement.
  std::vector<int> Reads() const;
  // Every layer once, in the order in which its gradients are complete.
  std::vector<int> Handed() const;
  // From where the layers are read that the loss needs: those operations leave the window as a
  // whole step does.
  std::span<const Operation> FromLossOn() const;

  friend bool operator==(const StepSchedule&, const StepSchedule&) = default;
};

// A model whose layers follow one another: the first takes the tokens in, the last one makes the
// loss. The last layer's gradients are known with the loss, and those of the first need no weights,
// so the backward pass reads neither (but see ends_in_parts).
struct Chain {
  int num_layers = 0;                    // >= 3
  bool loss_reads_first = false;         // the loss needs the weights of the first layer too (tied)
  std::vector<UpdateTime> update_times;  // by layer; empty: all kOnRead
  // The first so many activations that the forward pass keeps are spilled: they wait longest for
  // their backward pass. 0 to MostSpilledActivations.
  int num_spilled_activations = 0;
  // The last so many layers before that which makes the loss save (OperationKind::kSave). 0 to all
  // but the first.
  int num_saving = 0;
  // The layers between the first and that which makes the loss form segments of so many; the last
  // one may be shorter. Of each the input alone is kept until the backward pass comes to it, and
  // then its layers go forward again. Of the last one all is kept. 1: of all.
  int segment_layers = 1;
  // The gradients of the first layer and of the last are made as they are handed over
  // (LayerCompute::GradientFrom), which needs the weights that the loss needs of that layer.
  bool ends_in_parts = false;
};
StepSchedule ChainSchedule(const Chain& chain);

// The same step without the reads of layers that it has read before, and their releases.
StepSchedule ReadingOnce(const StepSchedule& schedule);

// How many activations are in memory at most in a step: those that are kept and not spilled, and
// one more, which is computed or being read. While a layer computes, the transfers of others go on.
int NumActivationBuffers(const Chain& chain);
// That leaves three buffers: while one is used, two layers' time is there for each transfer. And it
// leaves one for each layer of a segment, since all that go forward again are there at one time.
int MostSpilledActivations(const Chain& chain);

// Forward pass and loss alone, without updates.
std::vector<Operation> ForwardOperations(const Chain& chain);
// The same without the last layer.
std::vector<Operation> ForwardOperationsWithoutLoss(const Chain& chain);

// The layers whose weights `operations` read, in order.
std::vector<int> ReadsOf(std::span<const Operation> operations);

// "read 0, forward 0, release 0": for messages and traces.
std::string Describe(std::span<const Operation> operations);

}  // namespace forebay
