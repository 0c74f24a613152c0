#include "forebay/step/layer_walk.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/step/step_schedule.h"

namespace forebay {
namespace {

using enum OperationKind;

// Its share of the computation, in forward passes of a layer: backward has two matrix products for
// each of forward.
double WorkOf(OperationKind kind) {
  switch (kind) {
    case kForward:
    case kLoss:
    case kRecompute:
      return 1;
    case kBackward:
      return 2;
    case kLossAndGradient:
      return 3;
    default:
      return 0;
  }
}

// The most layers that are between the two at one time.
size_t MostBetween(OperationKind begin, OperationKind end, std::span<const Operation> operations) {
  int64_t count = 0;
  int64_t most = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == begin) most = std::max(most, ++count);
    if (operation.kind == end) --count;
  }
  return static_cast<size_t>(most);
}

double WorkOf(std::span<const Operation> operations) {
  double work = 0;
  for (const Operation& operation : operations) work += WorkOf(operation.kind);
  return work;
}

// In traces.
TraceScope ScopeOf(OperationKind kind, int layer, size_t batch = 0) {
  return TraceScope(NameOf(kind).data(), {.layer = layer, .batch = static_cast<int64_t>(batch)});
}

}  // namespace

const LayerWeights& HeldWeights::Of(int layer) const {
  const auto lease = std::ranges::find(leases_, layer, &WeightsLease::layer);
  FOREBAY_CHECK(lease != leases_.end());
  return lease->weights();
}

LayerWalk::LayerWalk(std::vector<Operation> operations)
    : operations_(std::move(operations)),
      reads_(ReadsOf(operations_)),
      all_work_(WorkOf(operations_)) {
  leases_.reserve(MostBetween(kRead, kRelease, operations_));
  kept_.reserve(MostBetween(kKeep, kDrop, operations_));
}

absl::Status LayerWalk::Run(ParamSource& source, LayerCompute& compute, const WalkHooks& hooks) {
  work_ = 0;
  recomputed_layer_ = -1;
  kept_.clear();
  is_behind_loss_ = false;
  absl::Status status;
  for (const Operation& operation : operations_) {
    if (operation.kind == kRead && hooks.progress) status = hooks.progress(work_ / all_work_);
    if (status.ok()) status = RunOne(operation, source, compute, hooks);
    if (!status.ok()) break;
    work_ += WorkOf(operation.kind);
  }
  while (!leases_.empty()) Release(leases_.back().layer(), compute);
  if (!status.ok() && hooks.activations != nullptr) hooks.activations->Abandon();
  return status;
}

template <typename Call>
absl::Status LayerWalk::ForEachBatch(const Operation& operation, const LayerCompute& compute,
                                     const Call& call) const {
  const HeldWeights held(leases_);
  for (size_t batch = 0; batch < compute.num_micro_batches(); ++batch) {
    const TraceScope trace = ScopeOf(operation.kind, operation.layer, batch);
    FOREBAY_RETURN_IF_ERROR(call(held, batch));
  }
  return absl::OkStatus();
}

absl::Status LayerWalk::RunOne(const Operation& operation, ParamSource& source,
                               LayerCompute& compute, const WalkHooks& hooks) {
  const int layer = operation.layer;
  switch (operation.kind) {
    case kRead:
      return Read(layer, source);
    case kRelease:
      Release(layer, compute);
      return absl::OkStatus();
    case kForward:
      FOREBAY_RETURN_IF_ERROR(AwaitForForward(hooks));
      return ForEachBatch(operation, compute, [&](const HeldWeights& weights, size_t batch) {
        return compute.Forward(layer, weights, batch);
      });
    case kLoss:
      return ForEachBatch(operation, compute, [&](const HeldWeights& weights, size_t batch) {
        return compute.Loss(layer, weights, batch);
      });
    case kLossAndGradient:
      is_behind_loss_ = true;
      return ForEachBatch(operation, compute, [&](const HeldWeights& weights, size_t batch) {
        return compute.LossAndGradient(layer, weights, batch);
      });
    case kRecompute:
      recomputed_layer_ = layer;
      return absl::OkStatus();
    case kBackward:
      FOREBAY_RETURN_IF_ERROR(AwaitInput(hooks));
      return ForEachBatch(operation, compute,
                          [&, recomputes = TakeRecompute(layer)](const HeldWeights& weights,
                                                                 size_t batch) -> absl::Status {
                            if (recomputes) {
                              const TraceScope trace = ScopeOf(kRecompute, layer, batch);
                              FOREBAY_RETURN_IF_ERROR(compute.Recompute(layer, weights, batch));
                            }
                            return compute.Backward(layer, weights, batch);
                          });
    case kSave:
      compute.Save(layer);
      return absl::OkStatus();
    case kKeep:
      Keep(layer, compute);
      return absl::OkStatus();
    case kDrop:
      Drop(layer, compute);
      return absl::OkStatus();
    case kSpill:
      hooks.activations->StartWrite(PlaceOf(layer));
      return absl::OkStatus();
    case kFetch:
      hooks.activations->StartRead(PlaceOf(layer));
      return absl::OkStatus();
    case kHand:
      return Hand(layer, compute, hooks);
    case kCommit: {
      const TraceScope trace("updates of the step before");
      return hooks.commit ? hooks.commit() : absl::OkStatus();
    }
    case kUpdate:
    case kWrite:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status LayerWalk::Hand(int layer, LayerCompute& compute, const WalkHooks& hooks) const {
  const HeldWeights held(leases_);
  for (int64_t first_elem = 0;;) {
    FOREBAY_ASSIGN_OR_RETURN(const std::optional<LayerGradient> gradient,
                             compute.GradientFrom(layer, held, first_elem));
    if (!gradient.has_value()) return absl::OkStatus();
    {
      const TraceScope trace = ScopeOf(kHand, layer);
      FOREBAY_RETURN_IF_ERROR(hooks.hand(*gradient));
    }
    if (gradient->num_elems() == 0) return absl::OkStatus();  // a layer of none
    first_elem = gradient->end_elem();
  }
}

absl::Status LayerWalk::AwaitRoom(const WalkHooks& hooks) const {
  if (hooks.activations == nullptr) return absl::OkStatus();
  return hooks.activations->Await(num_kept() - hooks.activations->num_buffers());
}

absl::Status LayerWalk::AwaitInput(const WalkHooks& hooks) const {
  if (hooks.activations == nullptr) return absl::OkStatus();
  return hooks.activations->Await(num_kept() - 1);
}

// Before the loss the input may still be on its way out, which does not hinder reading it. Behind
// the loss a segment goes forward again from an input that comes back.
absl::Status LayerWalk::AwaitForForward(const WalkHooks& hooks) const {
  FOREBAY_RETURN_IF_ERROR(AwaitRoom(hooks));
  return is_behind_loss_ ? AwaitInput(hooks) : absl::OkStatus();
}

void LayerWalk::Keep(int layer, LayerCompute& compute) {
  compute.Keep(layer);
  kept_.push_back(layer);
}

void LayerWalk::Drop(int layer, LayerCompute& compute) {
  FOREBAY_CHECK(!kept_.empty() && kept_.back() == layer);
  kept_.pop_back();
  compute.Drop(layer);
}

int LayerWalk::PlaceOf(int layer) const {
  const auto kept = std::ranges::find(kept_, layer);
  FOREBAY_CHECK(kept != kept_.end());
  return static_cast<int>(kept - kept_.begin());
}

// Whether the layer's backward pass begins with a recomputation.
bool LayerWalk::TakeRecompute(int layer) {
  const int recomputed = std::exchange(recomputed_layer_, -1);
  FOREBAY_CHECK(recomputed < 0 || recomputed == layer);
  return recomputed >= 0;
}

absl::Status LayerWalk::Read(int layer, ParamSource& source) {
  const TraceScope trace = ScopeOf(kRead, layer);
  FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, source.Acquire(layer));
  leases_.push_back(std::move(lease));
  return absl::OkStatus();
}

void LayerWalk::Release(int layer, LayerCompute& compute) {
  const auto lease = std::ranges::find(leases_, layer, &WeightsLease::layer);
  FOREBAY_CHECK(lease != leases_.end());
  lease->Release(compute.WeightsAreUsed(layer));
  leases_.erase(lease);
}

}  // namespace forebay
