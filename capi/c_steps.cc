// Steps and leases of layers.
#include <algorithm>
#include <optional>
#include <span>

#include "forebay/base/errors.h"
#include "forebay/capi/c_dlpack.h"
#include "forebay/capi/c_layers.h"

namespace forebay::capi {
namespace {

absl::Status Acquire(LayersState& state, const std::shared_ptr<LayersState>& shared, int32_t layer,
                     forebay_lease** lease) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(lease, "lease"));
  FOREBAY_ASSIGN_OR_RETURN(DeviceLeases::Lent lent, state.Acquire(layer));
  *lease = new forebay_lease{{}, std::make_shared<SharedLease>(shared, std::move(lent))};
  return absl::OkStatus();
}

absl::Status AddGradient(LayersState& state, int32_t tensor, int32_t dtype, const void* data,
                         size_t num_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype, "dtype"));
  if (num_bytes > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(data, "data"));
  return state.AddGradient(tensor, type, {static_cast<const std::byte*>(data), num_bytes});
}

absl::Status AddDeviceGradient(LayersState& state, int32_t tensor, int32_t dtype, const void* data,
                               size_t num_bytes, void* stream) {
  FOREBAY_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype, "dtype"));
  if (num_bytes > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(data, "data"));
  return state.AddDeviceGradient(tensor, type, data, num_bytes, stream);
}

void* NewLeasedTensor(const std::shared_ptr<SharedLease>& lease, int32_t tensor) {
  const TensorSpec* const spec = lease->Find(tensor);
  if (spec == nullptr) return nullptr;
  return NewTensor(lease, const_cast<std::byte*>(lease->DataOf(*spec)),
                   TypeOf(lease->lease().weights().dtype), spec->shape, lease->device());
}

}  // namespace
}  // namespace forebay::capi

using forebay::CommitWhen;
using forebay::Json;
using forebay::capi::CheckPointer;
using forebay::capi::LayersState;
using forebay::capi::ObjectOf;
using forebay::capi::OptionsOf;
using forebay::capi::RunOn;

namespace {

int32_t EndStep(forebay_layers* layers, const char* user, size_t user_length, int32_t commit_now,
                bool is_update, char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(Json object, ObjectOf(user, user_length, "user"));
    const CommitWhen when = commit_now != 0 ? CommitWhen::kNow : CommitWhen::kByPace;
    return state.EndStep(std::move(object), when, is_update);
  });
}

}  // namespace

extern "C" {

// ---- Weights -----------------------------------------------------------------------------------

int32_t forebay_layers_expect(forebay_layers* layers, const int32_t* order, size_t num_layers,
                              char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(forebay::LayerSession* const session, state.Session());
    if (num_layers == 0) return absl::OkStatus();
    FOREBAY_RETURN_IF_ERROR(CheckPointer(order, "order"));
    const int num_streamed = session->store().tiles().num_streamed_layers();
    for (const int32_t layer : std::span(order, num_layers)) {
      if (layer >= 0 && layer < num_streamed) continue;
      return forebay::UsageError(
          fmt::format("there is no layer {}; the last is {}", layer, num_streamed - 1));
    }
    return state.Expect({order, num_layers});
  });
}

void forebay_layers_cancel_expected(forebay_layers* layers) {
  RunOn(layers, nullptr, [](LayersState& state) { return state.CancelExpected(); });
}

int32_t forebay_layers_acquire(forebay_layers* layers, int32_t layer, forebay_lease** lease,
                               char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return forebay::capi::Acquire(state, layers->state, layer, lease);
  });
}

const void* forebay_lease_data(const forebay_lease* lease, int32_t tensor) {
  if (!forebay::capi::IsUsable(lease)) return nullptr;
  const forebay::TensorSpec* const spec = lease->shared->Find(tensor);
  return spec == nullptr ? nullptr : lease->shared->DataOf(*spec);
}

const void* forebay_lease_bytes(const forebay_lease* lease, size_t* num_bytes) {
  if (!forebay::capi::IsUsable(lease)) return nullptr;
  const auto bytes = lease->shared->lease().weights().data;
  if (num_bytes != nullptr) *num_bytes = bytes.size();
  return bytes.data();
}

int32_t forebay_lease_ready(forebay_lease* lease, void* stream, char** message) {
  return forebay::capi::Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(lease, "lease"));
    return lease->shared->MakeReady(stream);
  });
}

void forebay_lease_release(forebay_lease* lease) {
  forebay::capi::Destroy(lease);
}

void* forebay_lease_dlpack(forebay_lease* lease, int32_t tensor) {
  if (!forebay::capi::IsUsable(lease)) return nullptr;
  try {
    return forebay::capi::NewLeasedTensor(lease->shared, tensor);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// ---- A step ------------------------------------------------------------------------------------

int32_t forebay_layers_begin_step(forebay_layers* layers, const forebay_step_options* options,
                                  char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const forebay_step_options step, OptionsOf(options));
    return state.BeginStep(step);
  });
}

int32_t forebay_layers_set_step(forebay_layers* layers, const forebay_step_options* options,
                                char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const forebay_step_options step, OptionsOf(options));
    return state.SetStep(step);
  });
}

int32_t forebay_layers_settle(forebay_layers* layers, char** message) {
  return RunOn(layers, message, [](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(forebay::LayerSession* const session, state.Session());
    return session->UpdatesOfTheStepBefore();
  });
}

int32_t forebay_layers_add_gradient(forebay_layers* layers, int32_t tensor, int32_t dtype,
                                    const void* data, size_t num_bytes, char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return forebay::capi::AddGradient(state, tensor, dtype, data, num_bytes);
  });
}

int32_t forebay_layers_add_device_gradient(forebay_layers* layers, int32_t tensor, int32_t dtype,
                                           const void* data, size_t num_bytes, void* stream,
                                           char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return forebay::capi::AddDeviceGradient(state, tensor, dtype, data, num_bytes, stream);
  });
}

int32_t forebay_layers_close_layer(forebay_layers* layers, int32_t layer, char** message) {
  return RunOn(layers, message, [&](LayersState& state) { return state.CloseLayer(layer); });
}

int32_t forebay_layers_finish_backward(forebay_layers* layers, forebay_step_gradients* gradients,
                                       char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(forebay_step_gradients result, OptionsOf(gradients));
    FOREBAY_ASSIGN_OR_RETURN(const forebay::StepGradients finished, state.FinishBackward());
    result.norm = finished.norm;
    result.nonfinite_layer = finished.first_nonfinite_layer;
    std::memcpy(gradients, &result, std::min(result.struct_size, sizeof(result)));
    if (!finished.must_repeat) return absl::OkStatus();
    return absl::InternalError("a step that is applied in backward has to be computed again");
  });
}

int32_t forebay_layers_update(forebay_layers* layers, const char* user, size_t user_length,
                              int32_t commit_now, char** message) {
  return EndStep(layers, user, user_length, commit_now, /*is_update=*/true, message);
}

int32_t forebay_layers_skip(forebay_layers* layers, const char* user, size_t user_length,
                            int32_t commit_now, char** message) {
  return EndStep(layers, user, user_length, commit_now, /*is_update=*/false, message);
}

void forebay_layers_abandon(forebay_layers* layers) {
  RunOn(layers, nullptr, [](LayersState& state) { return state.Abandon(); });
}

int32_t forebay_layers_commit(forebay_layers* layers, const char* user, size_t user_length,
                              char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    if (user == nullptr) return state.Commit(std::nullopt);
    FOREBAY_ASSIGN_OR_RETURN(Json object, ObjectOf(user, user_length, "user"));
    return state.Commit(std::move(object));
  });
}

int32_t forebay_layers_commit_once_applied(forebay_layers* layers, const char* user,
                                           size_t user_length, char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    if (user == nullptr) return state.CommitOnceApplied(std::nullopt);
    FOREBAY_ASSIGN_OR_RETURN(Json object, ObjectOf(user, user_length, "user"));
    return state.CommitOnceApplied(std::move(object));
  });
}

}  // extern "C"
