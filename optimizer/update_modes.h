// The calls of plans whose updates are applied at other times than when a layer is read
// (UpdateTime), beside those of the OffloadedOptimizer that they belong to. On the plain path
// nobody calls them.
//
// - Speculation (kAfterHand): gradients are applied as they are handed over, to the slot that is
//   not committed, in the hope that nothing has to be clipped. Where that fails the step is
//   computed again, from the committed slot.
// - Delay (kAfterNextHand): a layer is updated when the next step has used its weights, which so
//   are those of before the update.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/offloaded_optimizer.h"

namespace forebay {

// Belongs to the training thread, as the optimizer does, which outlives it.
class UpdateModes {
 public:
  explicit UpdateModes(OffloadedOptimizer::Impl* impl) : impl_(impl) {}

  // ---- Speculation

  // Waits for the update that is being made on the optimizer's thread; no other is made after it.
  void StopUpdates();

  // Whether the placement has speculative layers.
  bool speculates() const;
  // Where the weights that live in RAM lie, by layer (Swapper::ResidentWeights): those of
  // speculative and delayed layers are updated there. Before the first step; they must outlive its
  // updates, up to StopUpdates.
  void SetResidentWeights(std::vector<std::span<std::byte>> weights);
  // The layers whose gradients were taken since BeginSpeculation; none: it did not begin.
  std::span<const int> Speculated() const;
  // After AbandonStep: reads the state of a layer that lives in RAM again, as what was applied to
  // it is undone in the store alone. StorageError, CorruptError.
  absl::Status RestoreState(int layer);
  // BeginSpeculation is to follow once the updates that are due are applied: what it needs of
  // the store is read as soon as they are. Until BeginSpeculation or AbandonStep.
  void ExpectSpeculation();
  // Until FinishBackward, what Hand gets of speculative layers is applied with `scalars` while the
  // backward pass goes on, as long as the norm of what was handed over is at most `most_norm`. Then
  // either BeginUpdate follows with the same scalars and takes it over, or AbandonStep undoes it:
  // the store returns what is committed again. Without this call gradients of these layers only
  // count in the norm. The window then still has the weights of before, until
  // Swapper::ForgetUpdatedOutside. UsageError where gradients were handed over already, or an
  // update is due. Requires: all that was written to the store is committed,
  // TensorStore::BeginWriting.
  absl::Status BeginSpeculation(const UpdateScalars& scalars, double most_norm);
  // After FinishBackward: whether all speculative layers are updated, with the scalars of
  // BeginSpeculation. Only then BeginUpdate may follow.
  bool SpeculationIsComplete() const;

  // ---- Delay

  // BeginUpdate where the placement delays updates: makes one pending. Of the next step, which
  // reads the weights as they are, each layer is updated once its gradient is handed over, or all
  // are in FinishDelayedUpdate. UsageError; the error of an update before this one.
  absl::Status BeginDelayedUpdate(const UpdateScalars& step, ResidentWrites resident);
  // The error that it would return, with nothing begun.
  absl::Status CheckBeginDelayedUpdate(const UpdateScalars& step, ResidentWrites resident) const;
  // Since BeginDelayedUpdate, until FinishDelayedUpdate returns without an error.
  bool DelayedUpdateIsPending() const;
  // Applies what is left of a pending update, and waits for its writes. The window then still has
  // the weights of before, until Swapper::ForgetUpdatedOutside. The first error; it stays.
  // Requires: no layer is lent.
  absl::Status FinishDelayedUpdate(absl::FunctionRef<void()> meanwhile = [] {});

 private:
  OffloadedOptimizer::Impl* const impl_;
};

}  // namespace forebay
