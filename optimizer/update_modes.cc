// The calls of update_modes.h.
#include "forebay/optimizer/update_modes.h"

#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/offloaded_optimizer_impl.h"

namespace forebay {

void UpdateModes::StopUpdates() {
  for (BackgroundUpdates* const updates : {impl_->speculation.get(), impl_->delays.get()}) {
    if (updates != nullptr) updates->Drop();
  }
}

// ---- Speculation -------------------------------------------------------------------------------

bool UpdateModes::speculates() const {
  return impl_->speculation != nullptr;
}

void UpdateModes::ExpectSpeculation() {
  FOREBAY_CHECK(speculates());
  impl_->expects_speculation.store(true, std::memory_order_relaxed);
  // Else whoever applies the last one goes on. Where that is right now nobody does: it is read when
  // it is needed.
  if (!impl_->AnyIsDue()) impl_->speculation->ReadEarly();
}

absl::Status UpdateModes::BeginSpeculation(const UpdateScalars& scalars, double most_norm) {
  FOREBAY_RETURN_IF_ERROR(impl_->Failure());
  if (impl_->speculation == nullptr) {
    return UsageError(
        "optimizer: speculation begins, and no layer is speculative. Place one so, or do without");
  }
  if (impl_->StepIsOpen() || impl_->AnyIsDue()) {
    return UsageError(fmt::format(
        "optimizer: the speculation of update {} begins {}. Begin it before the step's first "
        "gradient, when all updates before are applied",
        scalars.step, impl_->StepIsOpen() ? "in the midst of a step" : "while an update is due"));
  }
  FOREBAY_RETURN_IF_ERROR(impl_->tensors->CheckStep(scalars.step));
  impl_->tensors->TakeGroups();
  impl_->step = scalars;
  impl_->resident = ResidentWrites::kNow;
  impl_->expects_speculation.store(false, std::memory_order_relaxed);
  impl_->speculates = true;
  impl_->num_speculated = 0;
  impl_->most_squares = most_norm * most_norm;
  impl_->speculation->Begin();
  return absl::OkStatus();
}

void UpdateModes::SetResidentWeights(std::vector<std::span<std::byte>> weights) {
  FOREBAY_CHECK(std::ssize(weights) == impl_->tiles.num_streamed_layers());
  impl_->resident_weights = std::move(weights);
}

std::span<const int> UpdateModes::Speculated() const {
  if (!impl_->speculates) return {};
  return std::span(impl_->speculative_layers).first(impl_->num_speculated);
}

absl::Status UpdateModes::RestoreState(int layer) {
  return impl_->ReadResidentState(impl_->tiles.first_tile(layer),
                                  impl_->tiles.first_tile(layer + 1));
}

bool UpdateModes::SpeculationIsComplete() const {
  return impl_->speculation_is_complete;
}

// ---- Delay -------------------------------------------------------------------------------------

absl::Status UpdateModes::BeginDelayedUpdate(const UpdateScalars& step, ResidentWrites resident) {
  FOREBAY_RETURN_IF_ERROR(CheckBeginDelayedUpdate(step, resident));
  impl_->TakeStep(step, resident);
  impl_->delayed_is_pending = true;
  impl_->delays->Begin();
  return absl::OkStatus();
}

absl::Status UpdateModes::CheckBeginDelayedUpdate(const UpdateScalars& step,
                                                  ResidentWrites resident) const {
  return impl_->CheckBeginUpdate(step, resident, UpdateTiming::kDelayed);
}

bool UpdateModes::DelayedUpdateIsPending() const {
  return impl_->delayed_is_pending;
}

absl::Status UpdateModes::FinishDelayedUpdate(absl::FunctionRef<void()> meanwhile) {
  if (!impl_->delayed_is_pending) return absl::OkStatus();
  const Stopwatch stopwatch;
  const TraceScope trace(Activity::kHandOver);
  bool all = false;
  impl_->delays->TakeAllHeld();
  absl::Status status = impl_->delays->End(all, meanwhile);
  status.Update(impl_->writes->AwaitAll(meanwhile));
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stats.hand_wait_s += stopwatch.Seconds();
  }
  FOREBAY_RETURN_IF_ERROR(status);
  FOREBAY_CHECK(all);
  impl_->delayed_is_pending = false;
  return absl::OkStatus();
}

}  // namespace forebay
