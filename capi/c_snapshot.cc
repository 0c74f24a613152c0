// A committed step of layers, to be read beside the step that follows.
#include <memory>
#include <mutex>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/capi/c_layers.h"
#include "forebay/capi/c_store.h"
#include "forebay/swap/store/store_snapshot.h"

struct forebay_snapshot : forebay::capi::Handle {
  std::shared_ptr<forebay::capi::LayersState> layers;  // whose store outlives the snapshot
  std::mutex mutex;
  std::unique_ptr<forebay::StoreSnapshot> store;
};

namespace forebay::capi {
namespace {

absl::StatusOr<std::unique_ptr<forebay_snapshot>> Take(LayersState& state,
                                                       const std::shared_ptr<LayersState>& shared) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, state.Session());
  if (session->store().num_slots() == 1) {
    return UsageError(
        "the store has one copy, which the next step is written over, so its commits cannot be "
        "read beside it. Make it with durability STEP, or read between steps "
        "(forebay_layers_read)");
  }
  if (state.run().is_divided()) {
    return UsageError(
        "each rank has a part of the state, and a snapshot would be of that. Read between steps "
        "(forebay_layers_read)");
  }
  auto snapshot = std::make_unique<forebay_snapshot>();
  snapshot->layers = shared;
  snapshot->store = std::make_unique<StoreSnapshot>(&session->store());
  return snapshot;
}

absl::Status Read(const StoreSnapshot& snapshot, int32_t tensor, int32_t plane, int64_t first,
                  int64_t num, void* values) {
  FOREBAY_ASSIGN_OR_RETURN(const TensorPlane of, PlaneOf(plane));
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec, TensorOf(snapshot.inventory(), tensor));
  FOREBAY_RETURN_IF_ERROR(CheckRange(*spec, first, num));
  if (!Has(snapshot.tiles(), *spec, of)) {
    return UsageError(fmt::format("'{}' has no plane {}", spec->name, plane));
  }
  if (num == 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CheckPointer(values, "values"));
  const auto count = static_cast<size_t>(num);
  switch (of) {
    case TensorPlane::kRaw:
      return snapshot.ReadRaw(*spec, first, {static_cast<std::byte*>(values), count});
    case TensorPlane::kW16:
      return snapshot.ReadTensorW16(*spec, first, {static_cast<uint16_t*>(values), count});
    default:
      return snapshot.ReadTensor(*spec, of, first, {static_cast<float*>(values), count});
  }
}

}  // namespace
}  // namespace forebay::capi

using forebay::capi::CheckPointer;
using forebay::capi::LayersState;

extern "C" {

int32_t forebay_snapshot_create(forebay_layers* layers, forebay_snapshot** snapshot,
                                char** message) {
  return forebay::capi::RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(snapshot, "snapshot"));
    FOREBAY_ASSIGN_OR_RETURN(auto taken, forebay::capi::Take(state, layers->state));
    *snapshot = taken.release();
    return absl::OkStatus();
  });
}

void forebay_snapshot_destroy(forebay_snapshot* snapshot) {
  forebay::capi::Destroy(snapshot);
}

int64_t forebay_snapshot_step(const forebay_snapshot* snapshot) {
  return forebay::capi::IsUsable(snapshot) ? snapshot->store->step() : -1;
}

int32_t forebay_snapshot_read(forebay_snapshot* snapshot, int32_t tensor, int32_t plane,
                              int64_t first, int64_t num, void* values, char** message) {
  return forebay::capi::Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(snapshot, "snapshot"));
    const std::lock_guard lock(snapshot->mutex);
    return forebay::capi::Read(*snapshot->store, tensor, plane, first, num, values);
  });
}

}  // extern "C"
