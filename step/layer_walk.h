// Runs a list of operations over the layers of a model: acquires and releases weights, has them
// computed with, hands gradients over. It is the only walk over layers: training, evaluation,
// generation and the replay of a step differ in their lists and in who computes.
//
// Updates and their writes are not run here. The window applies an update when it reads a layer,
// and the optimizer's own thread applies the others; the list says which is when.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "forebay/step/activation_storage.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/operation.h"
#include "forebay/step/param_source.h"

namespace forebay {

struct WalkHooks {
  // Called before each kRead with the fraction of the work that is done, in [0, 1]; may be empty.
  std::function<absl::Status(double fraction)> progress;
  // kHand, once for each part of a layer's gradient. Required if the list has it.
  std::function<absl::Status(const LayerGradient& gradient)> hand;
  // kCommit; may be empty.
  std::function<absl::Status()> commit;
  // kSpill and kFetch. Requires one where the list has them; whoever computes uses its buffers.
  ActivationStorage* activations = nullptr;
};

// Owned by one thread. Allocates nothing after its creation.
class LayerWalk {
 public:
  explicit LayerWalk(std::vector<Operation> operations);

  // Announces every read of the list. Once before each Run; several before the first of them let
  // the source read ahead over their borders.
  void Announce(ParamSource& source) const { source.Expect(reads_); }
  // The first failure of a hook, the source or the computation ends the walk; every lease is given
  // back by then, and no activation is under way.
  absl::Status Run(ParamSource& source, LayerCompute& compute, const WalkHooks& hooks);

 private:
  absl::Status RunOne(const Operation& operation, ParamSource& source, LayerCompute& compute,
                      const WalkHooks& hooks);
  absl::Status Read(int layer, ParamSource& source);
  // Waits until the buffer of the activation that comes next is free, or the one that was kept last
  // has come back.
  absl::Status AwaitRoom(const WalkHooks& hooks) const;
  absl::Status AwaitInput(const WalkHooks& hooks) const;
  absl::Status AwaitForForward(const WalkHooks& hooks) const;
  void Keep(int layer, LayerCompute& compute);
  void Drop(int layer, LayerCompute& compute);
  // As ActivationStorage has it, of an activation that is kept.
  int PlaceOf(int layer) const;
  int num_kept() const { return static_cast<int>(kept_.size()); }
  bool TakeRecompute(int layer);
  absl::Status Hand(int layer, LayerCompute& compute, const WalkHooks& hooks) const;
  void Release(int layer, LayerCompute& compute);
  // `call(weights, batch)` for every micro-batch.
  template <typename Call>
  absl::Status ForEachBatch(const Operation& operation, const LayerCompute& compute,
                            const Call& call) const;

  const std::vector<Operation> operations_;
  const std::vector<int> reads_;
  const double all_work_;
  std::vector<WeightsLease> leases_;
  std::vector<int> kept_;  // layers whose activations are
  bool is_behind_loss_ = false;
  double work_ = 0;
  int recomputed_layer_ = -1;  // with the kBackward that follows; -1: none
};

}  // namespace forebay
