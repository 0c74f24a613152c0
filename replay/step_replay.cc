#include "forebay/replay/step_replay.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay {

namespace {

// Without a forward pass there are no activations to read back and to give up.
std::vector<Operation> FromLossOn(const StepSchedule& schedule) {
  std::vector<Operation> operations;
  std::ranges::copy_if(schedule.FromLossOn(), std::back_inserter(operations),
                       [](const Operation& op) {
                         return op.kind != OperationKind::kFetch &&
                                op.kind != OperationKind::kKeep && op.kind != OperationKind::kDrop;
                       });
  return operations;
}

}  // namespace

StepReplay::StepReplay(const OffloadPlan& plan, int num_threads)
    : step_walk_(plan.schedule.operations),
      walk_from_loss_(FromLossOn(plan.schedule)),
      pool_(num_threads, "replay") {}

absl::StatusOr<std::unique_ptr<StepReplay>> StepReplay::Create(const OffloadPlan& plan,
                                                               const StepReplayOptions& options,
                                                               std::unique_ptr<TensorStore> store,
                                                               MemoryBudget* budget) {
  std::unique_ptr<StepReplay> replay(new StepReplay(plan, options.num_threads));
  const Inventory& inventory = store->inventory();
  FOREBAY_ASSIGN_OR_RETURN(replay->gradient_,
                           HostBuffer::Create(budget, "gradient of one layer (fp32)",
                                              inventory.largest_layer_elems() * 4));
  replay->FillGradient(inventory);
  replay->compute_ = std::make_unique<NoCompute>(&inventory, replay->gradient_.As<float>());
  const bool computes = options.compute == ReplayCompute::kAdamW;
  LayerSessionOptions session;
  session.offload = options.offload;
  session.threads = computes ? options.num_threads : 1;
  session.pool = &replay->pool_;
  session.arithmetic = computes ? nullptr : &replay->nothing_;
  FOREBAY_ASSIGN_OR_RETURN(
      replay->session_, LayerSession::Create(plan, std::move(session), std::move(store), budget));
  return replay;
}

// Numbers of the size of gradients, none alike, and zero wherever any layer has padding.
void StepReplay::FillGradient(const Inventory& inventory) {
  const std::span<float> gradient = gradient_.As<float>();
  constexpr int64_t kTaskElems = int64_t{1} << 16;
  const auto num_elems = static_cast<int64_t>(gradient.size());
  const CounterRng rng(/*seed=*/1);
  pool_.ParallelFor((num_elems + kTaskElems - 1) / kTaskElems, [&](int64_t task) {
    const int64_t end = std::min(num_elems, (task + 1) * kTaskElems);
    for (int64_t i = task * kTaskElems; i < end; i += 4) {
      const auto words = rng.Words(static_cast<uint64_t>(i));
      for (int64_t j = 0; j < std::min<int64_t>(4, end - i); ++j) {
        gradient[i + j] = (static_cast<float>(words[j] >> 8) * 0x1p-23f - 1.0f) * 1e-3f;
      }
    }
  });
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    for (const Padding& padding : PaddingOf(inventory, layer)) {
      std::fill(gradient.begin() + padding.first_elem, gradient.begin() + padding.end_elem, 0.0f);
    }
  }
}

// Forward and backward, as far as `walk` goes.
absl::Status StepReplay::RunPass(LayerWalk& walk, const std::function<bool()>& stop,
                                 double& commit_s) {
  WalkHooks hooks;
  hooks.progress = [&](double /*fraction*/) {
    return stop() ? InterruptedError("stopped on request") : absl::OkStatus();
  };
  hooks.hand = [&](const LayerGradient& gradient) { return session_->Hand(gradient); };
  hooks.commit = [&] {
    const Stopwatch watch;
    const absl::Status status = session_->UpdatesOfTheStepBefore();
    commit_s = watch.Seconds();
    return status;
  };
  // No step changes much, whatever the values are: they stay in the range of ordinary numbers.
  const UpdateScalars scalars = {
      .step = session_->released_step() + 1, .lr = 1e-9, .gradient_scale = 1};
  FOREBAY_RETURN_IF_ERROR(session_->BeginStep({.scalars_of = [=](double) { return scalars; }}));
  hooks.activations = session_->activations();
  walk.Announce(*session_);
  FOREBAY_RETURN_IF_ERROR(walk.Run(*session_, *compute_, hooks));
  return session_->FinishBackward().status();
}

absl::Status StepReplay::Start(const std::function<bool()>& stop) {
  double commit_s = 0;
  return RunPass(walk_from_loss_, stop, commit_s);
}

absl::StatusOr<ReplayedStep> StepReplay::RunStep(const std::function<bool()>& stop) {
  const IoStats io = store().engine().stats();
  const double wait_s = session_->waits().Total();
  const double update_s = session_->update_s();
  ReplayedStep result;
  const Stopwatch watch;
  FOREBAY_RETURN_IF_ERROR(session_->Update(Json::object()));
  FOREBAY_RETURN_IF_ERROR(RunPass(step_walk_, stop, result.commit_s));
  result.seconds = watch.Seconds();
  const IoStats after = store().engine().stats();
  result.transfers = {after.submitted_read_bytes - io.submitted_read_bytes,
                      after.write_bytes - io.write_bytes};
  result.wait_s = session_->waits().Total() - wait_s;
  result.update_s = session_->update_s() - update_s;
  return result;
}

}  // namespace forebay
