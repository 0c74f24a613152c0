#include "forebay/optimizer/offloaded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/offloaded_optimizer_impl.h"

namespace forebay {
namespace {

bool HasSameScalars(const UpdateScalars& a, const UpdateScalars& b) {
  return a.step == b.step && a.lr == b.lr && a.gradient_scale == b.gradient_scale &&
         a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps &&
         a.rounding_seed == b.rounding_seed;
}

}  // namespace

// ---- Gradients ---------------------------------------------------------------------------------

absl::Status OffloadedOptimizer::SetGroups(std::span<const ParameterGroup> groups) {
  return impl_->tensors->SetGroups(groups,
                                   /*may_freeze=*/!impl_->StepIsOpen());
}

absl::Status OffloadedOptimizer::Impl::CheckHand(const LayerGradient& gradient) const {
  const int layer = gradient.layer;
  if (backward_finished || AnyIsDue()) {
    return UsageError(fmt::format(
        "optimizer: a gradient of layer {} is handed over {}. {}", layer,
        backward_finished ? "after the step's backward pass" : "while an update is due",
        backward_finished ? "Begin the update or abandon the step first"
                          : "Let every layer come in first, so that its update is applied"));
  }
  FOREBAY_RETURN_IF_ERROR(gradients->CheckHand(gradient, next, on_its_way.layer));
  FOREBAY_RETURN_IF_ERROR(tensors->CheckHand(layer, gradient.missing));
  if (gradient.device != DeviceKind::kHost && landing == nullptr) {
    return UsageError(
        "optimizer: a gradient is handed over on a device, and the optimizer was made without one. "
        "Make it with the device, or copy the gradient to memory first");
  }
  return next.layer >= 0 ? absl::OkStatus() : CheckOrder(layer);
}

// Where a layer is updated as its gradient comes.
absl::Status OffloadedOptimizer::Impl::CheckOrder(int layer) const {
  const auto counts = [this](int of) {
    return delayed_is_pending || (speculates && !placement.WaitsForNorm(of));
  };
  if (!counts(layer)) return absl::OkStatus();
  int expected = -1;  // none: all are updated, after a step that was abandoned
  if (delayed_is_pending) {
    const int one_comes = on_its_way.layer;
    const int64_t coming =
        one_comes < 0 ? 0 : tiles.first_tile(one_comes + 1) - tiles.first_tile(one_comes);
    const auto next_tile = static_cast<size_t>(delays->num_taken() + coming);
    if (next_tile < delays->tiles().size()) {
      expected = tiles.tiles()[delays->tiles()[next_tile]].layer;
    }
  } else {
    const bool one_comes =
        on_its_way.layer >= 0 && !on_its_way.is_begun && counts(on_its_way.layer);
    expected = speculative_layers[num_speculated + (one_comes ? 1 : 0)];
  }
  if (layer == expected) return absl::OkStatus();
  const std::vector<LayerSpec>& layers = store->inventory().layers();
  if (expected < 0) {
    return UsageError(fmt::format(
        "optimizer: the gradient of layer '{}' is handed over after an abandoned step, and the "
        "update of the step before is pending. Finish it first",
        layers[layer].name));
  }
  return UsageError(
      fmt::format("optimizer: the gradient of layer '{}' is handed over before that of layer '{}', "
                  "and layers are updated in the order that the optimizer was made with. Keep it",
                  layers[layer].name, layers[expected].name));
}

// Requires: the gradient fits, as Hand has checked.
absl::Status OffloadedOptimizer::Impl::BeginTaking(int layer, std::span<const int> missing) {
  // Updates beside the passes have the staging buffers to themselves.
  if (speculation == nullptr && delays == nullptr) staged->ReadEarly(due_tiles);
  tensors->Hand(layer, missing);
  if (!speculates || placement.WaitsForNorm(layer)) return absl::OkStatus();
  tensors->Prepare(layer);  // before its first tile is taken
  // Before: where it fails, some tiles of the layer may be updated, and have to be undone.
  ++num_speculated;
  return absl::OkStatus();
}

void OffloadedOptimizer::Impl::EndTaking(int layer) {
  const double sum_of_squares = gradients->sum_of_squares(layer);
  const bool is_finite = std::isfinite(sum_of_squares);
  if (!is_finite && first_nonfinite_layer < 0) first_nonfinite_layer = layer;
  handed_squares += sum_of_squares;
  if (speculates && !(handed_squares <= most_squares)) speculation->Decline();
  if (delayed_is_pending) delays->TakeHeld(tiles.first_tile(layer + 1) - tiles.first_tile(layer));
}

absl::Status OffloadedOptimizer::Impl::Take(const LayerGradient& gradient, ThreadPool& compute) {
  const int layer = gradient.layer;
  if (gradient.first_elem == 0) FOREBAY_RETURN_IF_ERROR(BeginTaking(layer, gradient.missing));
  FOREBAY_RETURN_IF_ERROR(gradients->Hand(gradient, compute, tensors->AsZeros()));
  if (gradient.end_elem() == tiles.layer_elems(layer)) EndTaking(layer);
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Hand(const LayerGradient& gradient, ThreadPool& pool) {
  // A gradient that does not fit is found before anything is copied.
  FOREBAY_RETURN_IF_ERROR(impl_->CheckHand(gradient));
  if (gradient.device != DeviceKind::kHost) {
    FOREBAY_RETURN_IF_ERROR(impl_->BringFromDevice(gradient, pool));
  } else {
    if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(gradient.ready->Await());
    FOREBAY_RETURN_IF_ERROR(impl_->gradients->CheckPadding(gradient));
    FOREBAY_RETURN_IF_ERROR(impl_->Land());
    FOREBAY_RETURN_IF_ERROR(impl_->Take(gradient, pool));
  }
  const bool is_last = gradient.end_elem() == impl_->tiles.layer_elems(gradient.layer);
  impl_->next = is_last ? NextGradient() : NextGradient{gradient.layer, gradient.end_elem()};
  return absl::OkStatus();
}

NextGradient OffloadedOptimizer::next_gradient() const {
  return impl_->next;
}

absl::Status OffloadedOptimizer::Impl::BringFromDevice(const LayerGradient& gradient,
                                                       ThreadPool& compute) {
  // While a part is on its way the one before it is taken, of this layer or of the one before.
  for (int64_t begin = 0; begin < gradient.num_elems();) {
    const bool is_first = gradient.first_elem + begin == 0;
    FOREBAY_ASSIGN_OR_RETURN(begin, landing->Start(gradient, begin));
    FOREBAY_RETURN_IF_ERROR(Land());
    on_its_way = {.layer = gradient.layer, .compute = &compute, .is_begun = !is_first};
    tensors->Hand(gradient.layer, gradient.missing);
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::Impl::Land() {
  if (on_its_way.layer < 0) return absl::OkStatus();
  ThreadPool* const compute = on_its_way.compute;
  on_its_way = {};
  FOREBAY_ASSIGN_OR_RETURN(const LayerGradient gradient, landing->Land());
  FOREBAY_RETURN_IF_ERROR(gradients->CheckPadding(gradient));
  return Take(gradient, *compute);
}

// With all of it written, so that whoever reads a layer next finds what was made of it.
absl::Status OffloadedOptimizer::Impl::EndSpeculation(bool& complete) {
  const Stopwatch stopwatch;
  const TraceScope trace(Activity::kHandOver);
  absl::Status status = speculation->End(complete);
  staged->ReadEarly(due_tiles);
  status.Update(writes->AwaitAll());
  staged->ReadEarly(due_tiles);  // into buffers that were being written from
  const std::lock_guard lock(mutex);
  stats.hand_wait_s += stopwatch.Seconds();
  return status;
}

// Another part may have what is not finite.
absl::Status OffloadedOptimizer::Impl::SumOverParts() {
  FOREBAY_RETURN_IF_ERROR(gradients->SumWholeLayers(options.sum_over_parts));
  const auto is_not_finite = [&](int layer) {
    return !std::isfinite(gradients->sum_of_squares(layer));
  };
  const auto first = std::ranges::find_if(options.hand_over_order, is_not_finite);
  first_nonfinite_layer = first == options.hand_over_order.end() ? -1 : *first;
  return absl::OkStatus();
}

absl::StatusOr<GradientStats> OffloadedOptimizer::FinishBackward() {
  if (impl_->backward_finished) {
    return UsageError(
        "optimizer: a step's backward pass is said to have ended twice. Begin the update or "
        "abandon the step");
  }
  FOREBAY_RETURN_IF_ERROR(impl_->Land());
  FOREBAY_RETURN_IF_ERROR(impl_->gradients->Finish());
  if (impl_->options.sum_over_parts) FOREBAY_RETURN_IF_ERROR(impl_->SumOverParts());
  GradientStats stats;
  double sum = 0;
  for (int layer = 0; layer < impl_->store->inventory().num_streamed_layers(); ++layer) {
    sum += impl_->gradients->sum_of_squares(layer);
  }
  stats.norm = std::sqrt(sum);
  stats.first_nonfinite_layer = std::exchange(impl_->first_nonfinite_layer, -1);
  impl_->handed_squares = 0;
  impl_->speculation_is_complete = impl_->speculation == nullptr;
  if (impl_->speculates) {
    FOREBAY_RETURN_IF_ERROR(impl_->EndSpeculation(impl_->speculation_is_complete));
  } else if (impl_->speculation == nullptr && impl_->delays == nullptr) {
    // Each step reads as many early, however fast the disk was.
    impl_->staged->ReadEarly(impl_->due_tiles, /*waits=*/true);
  }
  impl_->backward_finished = true;
  return stats;
}

void OffloadedOptimizer::AbandonStep() {
  const bool was_expected =
      impl_->expects_speculation.exchange(false, std::memory_order_relaxed) && !impl_->AnyIsDue();
  if (impl_->landing != nullptr) impl_->landing->Drop();
  impl_->on_its_way = {};
  impl_->next = {};
  impl_->gradients->Abandon();
  impl_->tensors->AbandonStep();
  // Tiles that are staged for updates that are due stay so. The swapper's thread applies none
  // meanwhile: whoever abandons has cancelled what was announced.
  if (impl_->speculates || was_expected) impl_->speculation->Drop();
  if (impl_->speculates) {
    // A write that failed stays the error of its tile.
    impl_->writes->AwaitAll().IgnoreError();
    impl_->store->DiscardWrites();
    impl_->speculates = false;
  }
  impl_->handed_squares = 0;
  impl_->first_nonfinite_layer = -1;
  impl_->backward_finished = false;
}

absl::Status OffloadedOptimizer::Impl::CheckBeginUpdate(const UpdateScalars& scalars,
                                                        ResidentWrites writes_resident,
                                                        UpdateTiming timing) const {
  FOREBAY_RETURN_IF_ERROR(Failure());
  const auto misuse = [&](std::string_view why, std::string_view advice) {
    return UsageError(fmt::format("optimizer: update {} begins {}. {}", scalars.step, why, advice));
  };
  if (AnyIsDue() || delayed_is_pending) {
    return misuse("while that before it is due or pending", "Let it be applied first");
  }
  if (!backward_finished) {
    return misuse("before its backward pass has ended", "Call FinishBackward first");
  }
  if (speculation != nullptr && !(speculates && speculation_is_complete)) {
    return misuse("with speculation that is not complete",
                  "Abandon the step, begin speculation and hand its gradients over again");
  }
  if (speculation != nullptr && !HasSameScalars(scalars, step)) {
    return misuse("with other scalars than its speculation",
                  "Give the same, or abandon the step and begin it again");
  }
  const bool writes_all = writes_resident == ResidentWrites::kNow;
  if (!writes_all && speculation != nullptr) {
    return misuse("with deferred writes, and is speculative", "Begin it with ResidentWrites::kNow");
  }
  if (timing == UpdateTiming::kDelayed && delays == nullptr) {
    return misuse("delayed, and the placement delays none", "Begin it as a lazy one");
  }
  return tensors->CheckStep(scalars.step);
}

void OffloadedOptimizer::Impl::TakeStep(const UpdateScalars& scalars,
                                        ResidentWrites writes_resident) {
  backward_finished = false;
  // An update that speculation has begun keeps its groups.
  if (!std::exchange(speculates, false)) tensors->TakeGroups();
  tensors->BeginUpdate();
  step = scalars;
  resident = writes_resident;
  gradients->BeginUpdate();
}

absl::Status OffloadedOptimizer::BeginUpdate(const UpdateScalars& step, ResidentWrites resident) {
  FOREBAY_RETURN_IF_ERROR(CheckBeginUpdate(step, resident));
  impl_->TakeStep(step, resident);
  impl_->staged->Begin(impl_->due_tiles);
  // Last: from here on the swapper's thread may update.
  for (size_t layer = 0; layer < impl_->due.size(); ++layer) {
    impl_->due[layer].store(impl_->placement.WaitsForNorm(static_cast<int>(layer)),
                            std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::Status OffloadedOptimizer::CheckBeginUpdate(const UpdateScalars& step,
                                                  ResidentWrites resident) const {
  return impl_->CheckBeginUpdate(step, resident, UpdateTiming::kAsPlaced);
}

std::vector<int64_t> OffloadedOptimizer::MissedUpdatesAfter() const {
  const std::span<const int64_t> missed = impl_->tensors->missed();
  std::vector<int64_t> after(missed.begin(), missed.end());
  const std::vector<uint8_t> left_alone = impl_->tensors->LeftAlone();
  for (size_t i = 0; i < after.size(); ++i) after[i] += left_alone[i];
  return after;
}

std::span<const int64_t> OffloadedOptimizer::missed_updates() const {
  return impl_->tensors->missed();
}

}  // namespace forebay
