#include "forebay/replay/step_replay.h"

#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay {
namespace {

absl::Status CheckStop(const std::function<bool()>& stop) {
  return stop() ? InterruptedError("stopped on request") : absl::OkStatus();
}

}  // namespace

StepReplay::StepReplay(const ReplayPlan& plan, int num_threads, TensorStore* store)
    : plan_(plan),
      step_walk_(plan.schedule.operations),
      walk_from_loss_({plan.schedule.FromLossOn().begin(), plan.schedule.FromLossOn().end()}),
      store_(store),
      pool_(num_threads, "replay") {}

absl::StatusOr<std::unique_ptr<StepReplay>> StepReplay::Create(const ReplayPlan& plan,
                                                               ReplayCompute compute,
                                                               int num_threads, TensorStore* store,
                                                               MemoryBudget* budget) {
  std::unique_ptr<StepReplay> replay(new StepReplay(plan, num_threads, store));
  FOREBAY_ASSIGN_OR_RETURN(replay->gradient_,
                           HostBuffer::Create(budget, "gradient of one layer (fp32)",
                                              plan.inventory.largest_layer_elems() * 4));
  replay->FillGradient();
  OffloadedOptimizerOptions options;
  options.arithmetic = compute == ReplayCompute::kNone ? &replay->nothing_ : nullptr;
  options.gradient_dtype = plan.options.gradient_dtype;
  options.num_threads = compute == ReplayCompute::kNone ? 1 : num_threads;
  options.num_staging_tiles = plan.options.buffers.num_staging_tiles;
  options.gradient_area = plan.gradient_area();
  FOREBAY_ASSIGN_OR_RETURN(
      replay->optimizer_,
      OffloadedOptimizer::Create(options, replay->plan_.placement, store, budget));
  FOREBAY_ASSIGN_OR_RETURN(replay->swapper_,
                           Swapper::Create(plan.window, replay->plan_.placement, store,
                                           replay->optimizer_.get(), budget));
  replay->source_ =
      std::make_unique<SwapperSource>(replay->swapper_.get(), WeightDType(plan.options.layout));
  replay->compute_ =
      std::make_unique<NoCompute>(&replay->plan_.inventory, replay->gradient_.As<float>());
  return replay;
}

// Numbers of the size of gradients, none alike, and zero wherever any layer has padding.
void StepReplay::FillGradient() {
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
  for (int layer = 0; layer < plan_.inventory.num_layers(); ++layer) {
    for (const Padding& padding : PaddingOf(plan_.inventory, layer)) {
      std::fill(gradient.begin() + padding.first_elem, gradient.begin() + padding.end_elem, 0.0f);
    }
  }
}

WalkHooks StepReplay::HooksOf(const std::function<bool()>& stop) {
  return {.progress = [&stop](double /*fraction*/) { return CheckStop(stop); },
          .hand =
              [this](int layer, const LayerGradient& gradient) {
                return optimizer_->Hand(layer, gradient, pool_);
              }};
}

absl::Status StepReplay::Start(const std::function<bool()>& stop) {
  walk_from_loss_.Announce(*source_);
  FOREBAY_RETURN_IF_ERROR(walk_from_loss_.Run(*source_, *compute_, HooksOf(stop)));
  return optimizer_->FinishBackward().status();
}

absl::StatusOr<ReplayedStep> StepReplay::RunStep(const std::function<bool()>& stop) {
  const IoStats io = store_->engine().stats();
  const double wait_s = swapper_->stats().wait_s;
  const double update_s = optimizer_->stats().update_s;
  ReplayedStep result;
  const Stopwatch watch;
  FOREBAY_RETURN_IF_ERROR(MakeReady(++step_));
  // No step changes much, whatever the values are: they stay in the range of ordinary numbers.
  FOREBAY_RETURN_IF_ERROR(
      optimizer_->BeginUpdate({.step = step_, .lr = 1e-9, .gradient_scale = 1}));
  WalkHooks hooks = HooksOf(stop);
  hooks.commit = [&] {
    const Stopwatch commit;
    const absl::Status status = Commit();
    result.commit_s = commit.Seconds();
    return status;
  };
  step_walk_.Announce(*source_);
  FOREBAY_RETURN_IF_ERROR(step_walk_.Run(*source_, *compute_, hooks));
  FOREBAY_RETURN_IF_ERROR(optimizer_->FinishBackward().status());
  result.seconds = watch.Seconds();
  const IoStats after = store_->engine().stats();
  result.transfers = {after.read_bytes - io.read_bytes, after.write_bytes - io.write_bytes};
  result.wait_s = swapper_->stats().wait_s - wait_s;
  result.update_s = optimizer_->stats().update_s - update_s;
  return result;
}

absl::Status StepReplay::MakeReady(int64_t step) {
  if (plan_.options.durability == ReplayDurability::kReplay) {
    FOREBAY_RETURN_IF_ERROR(optimizer_->PublishIntent(step, Json::object()));
  }
  return store_->BeginWriting();
}

absl::Status StepReplay::Commit() {
  if (plan_.options.durability == ReplayDurability::kNone) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(optimizer_->AwaitAllWrites());
  return store_->Commit({.step = step_, .trainer = Json::object()});
}

}  // namespace forebay
