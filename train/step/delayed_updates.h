// Which weights a step sees under --delay_update_from: the one-step delayed parameter update of
// ZeRO-Offload (Ren et al. 2021, section 5.2). From that step on a step computes with weights that
// lack the update of the step before, which is applied meanwhile (UpdateTiming::kDelayed).
//
// With theta(s) for the weights after step s, step s sees theta(s - 2). Where the update of s - 1
// is pending that is what is committed. Where it is committed already (for an evaluation, an
// export, by a stop) it is the commit before, which the other slot still holds: nothing is written
// there until the gradients of s are kept (--durability=replay). So a crash leaves, of whatever
// step comes next, its weights or its gradients. A step that was no update (fp16) leaves nothing to
// be left out.
//
// Not for: applying updates (optimizer/offloaded_optimizer.h), or committing them (trainer.cc).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/train/step/run_session.h"

namespace forebay {

// Owned by the training thread.
class DelayedUpdates {
 public:
  // `from_step`: TrainOptions::delay_update_from. `session` outlives this.
  DelayedUpdates(int64_t from_step, RunSession* session)
      : from_step_(from_step), session_(session) {}

  // Of the update of `step`.
  UpdateTiming TimingOf(int64_t step) const {
    return Delays(step + 1) ? UpdateTiming::kDelayed : UpdateTiming::kLazy;
  }
  // Has the window show what `step` sees. `follows_update`: whether the step before was one.
  // CorruptError where what it sees is lost.
  absl::Status BeginStep(int64_t step, bool follows_update);
  // Has it show the newest weights, for evaluations. Requires: no update is pending.
  void ShowNewest();

 private:
  // Whether `step` does not see the update of the step before.
  bool Delays(int64_t step) const { return from_step_ > 0 && step >= from_step_; }

  const int64_t from_step_;
  RunSession* const session_;
};

}  // namespace forebay
