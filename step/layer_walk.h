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
  // kHand. Requires one where the list has it.
  std::function<absl::Status(int layer, const LayerGradient& gradient)> hand;
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
  // Waits until the buffer of the layer's activation is free, or has the one that it needs.
  static absl::Status AwaitRoom(int layer, const WalkHooks& hooks);
  static absl::Status AwaitInput(int layer, const WalkHooks& hooks);
  bool TakeRecompute(int layer);
  void Release(int layer, LayerCompute& compute);
  // `call(weights, batch)` for every micro-batch.
  template <typename Call>
  absl::Status ForEachBatch(const Operation& operation, const LayerCompute& compute,
                            const Call& call) const;

  const std::vector<Operation> operations_;
  const std::vector<int> reads_;
  const double all_work_;
  std::vector<WeightsLease> leases_;
  double work_ = 0;
  int recomputed_layer_ = -1;  // with the kBackward that follows; -1: none
};

}  // namespace forebay
