// Sessions of tensors: any plane of any tensor, in any order, leased and written back.
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_dlpack.h"
#include "forebay/capi/c_inventory.h"
#include "forebay/capi/c_status.h"
#include "forebay/capi/c_store.h"
#include "forebay/swap/session/tensor_session.h"

struct forebay_tensors : forebay::capi::Handle {
  forebay::OpenedEngine engine;  // in this order: it outlives the session
  std::unique_ptr<forebay::TensorSession> session;
};

// Shared with DLPack tensors, which keep the values of a lease that is read.
struct forebay_tensor_lease : forebay::capi::Handle {
  std::shared_ptr<forebay::TensorLease> shared;
  bool is_written = false;
};

namespace forebay::capi {
namespace {

// ---- Create and open ---------------------------------------------------------------------------

absl::StatusOr<SessionOptions> SessionOptionsOf(const forebay_tensors_options& options) {
  SessionOptions session;
  if (options.ram_bytes < 0 || options.lease_bytes < 0 || options.tile_elems < 0 ||
      !(options.wait_limit_s >= 0)) {
    return UsageError(fmt::format(
        "ram_bytes is {}, lease_bytes {}, tile_elems {} and wait_limit_s {}: they are 0 or above",
        options.ram_bytes, options.lease_bytes, options.tile_elems, options.wait_limit_s));
  }
  if (options.ram_bytes > 0) session.memory_bytes = options.ram_bytes;
  session.lease_bytes = options.lease_bytes;
  if (options.wait_limit_s > 0) session.wait_limit_s = options.wait_limit_s;
  return session;
}

absl::StatusOr<StoreOptions> StoreOptionsOf(const forebay_tensors_options& options) {
  StoreOptions store;
  FOREBAY_ASSIGN_OR_RETURN(store.directories, FoldersOf(options.folders, options.num_folders));
  FOREBAY_ASSIGN_OR_RETURN(const DType weights, DTypeOf(options.weight_dtype, "weight_dtype"));
  store.layout = LayoutOf(weights);
  store.moment_set = {.m = options.without_m == 0, .v = options.without_v == 0};
  if (options.tile_elems > 0) store.tile_elems = options.tile_elems;
  switch (options.durability) {
    case FOREBAY_DURABILITY_AUTO:
    case FOREBAY_DURABILITY_STEP:
      store.num_slots = 2;
      return store;
    case FOREBAY_DURABILITY_NONE:
      store.num_slots = 1;
      return store;
    default:
      return UsageError(
          fmt::format("durability is {}: tensors have 0 or 2 (the last commit), or 1 (none)",
                      options.durability));
  }
}

absl::StatusOr<OpenedEngine> EngineFor(const forebay_tensors_options& options,
                                       const std::vector<std::string>& folders) {
  if (folders.empty()) return UsageError("no folder is named for the store. Name at least one");
  FOREBAY_ASSIGN_OR_RETURN(const EngineKind kind, EngineOf(options.engine));
  return OpenEngine({.engine = kind}, folders);
}

Inventory CopyOf(const forebay_inventory& inventory) {
  const std::lock_guard lock(inventory.mutex);
  return inventory.inventory;
}

absl::StatusOr<std::unique_ptr<forebay_tensors>> Create(const forebay_tensors_options* given,
                                                        const forebay_inventory* inventory) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(inventory, "inventory"));
  FOREBAY_ASSIGN_OR_RETURN(const forebay_tensors_options options, OptionsOf(given));
  FOREBAY_ASSIGN_OR_RETURN(const SessionOptions session, SessionOptionsOf(options));
  FOREBAY_ASSIGN_OR_RETURN(const StoreOptions store, StoreOptionsOf(options));
  auto made = std::make_unique<forebay_tensors>();
  FOREBAY_ASSIGN_OR_RETURN(made->engine, EngineFor(options, store.directories));
  FOREBAY_ASSIGN_OR_RETURN(made->session, TensorSession::Create(session, store, CopyOf(*inventory),
                                                                made->engine.engine.get()));
  return made;
}

absl::StatusOr<std::unique_ptr<forebay_tensors>> Open(const forebay_tensors_options* given) {
  FOREBAY_ASSIGN_OR_RETURN(const forebay_tensors_options options, OptionsOf(given));
  FOREBAY_ASSIGN_OR_RETURN(const SessionOptions session, SessionOptionsOf(options));
  FOREBAY_ASSIGN_OR_RETURN(const auto folders, FoldersOf(options.folders, options.num_folders));
  auto made = std::make_unique<forebay_tensors>();
  FOREBAY_ASSIGN_OR_RETURN(made->engine, EngineFor(options, folders));
  FOREBAY_ASSIGN_OR_RETURN(made->session,
                           TensorSession::Open(session, folders, made->engine.engine.get()));
  return made;
}

Json InventoryJson(const TensorSession& session) {
  Json tensors = Json::array();
  for (const TensorSpec& tensor : session.inventory().tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"layer", tensor.layer},
                       {"raw", tensor.raw},
                       {"shape", tensor.shape}});
  }
  return tensors;
}

Json StatsJson(const forebay_tensors& tensors) {
  const SessionStats stats = tensors.session->stats();
  return {{"engine", tensors.engine.line},
          {"read_bytes", stats.read_bytes},
          {"write_bytes", stats.write_bytes},
          {"copied_bytes", stats.copied_bytes},
          {"leases", stats.leases},
          {"waits", stats.waits},
          {"wait_s", stats.wait_s},
          {"commits", stats.commits},
          {"leased_bytes", stats.leased_bytes},
          {"ram_bytes", stats.resident_bytes},
          {"peak_ram_bytes", stats.peak_resident_bytes}};
}

// ---- Leases ------------------------------------------------------------------------------------

absl::Status Acquire(TensorSession& session, std::span<const forebay_lease_request> requests,
                     forebay_tensor_lease** leases) {
  std::vector<LeaseRequest> wanted;
  for (const forebay_lease_request& request : requests) {
    FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const tensor,
                             TensorOf(session.inventory(), request.tensor));
    FOREBAY_ASSIGN_OR_RETURN(const TensorPlane plane, PlaneOf(request.plane));
    FOREBAY_ASSIGN_OR_RETURN(
        const LeaseAccess access,
        Choice(request.access,
               std::array{LeaseAccess::kRead, LeaseAccess::kWrite, LeaseAccess::kOverwrite},
               "access"));
    wanted.push_back({tensor->name, plane, access});
  }
  std::vector<TensorLease> given(wanted.size());
  std::vector<std::unique_ptr<forebay_tensor_lease>> made;
  for (const LeaseRequest& request : wanted) {
    made.push_back(std::make_unique<forebay_tensor_lease>(forebay_tensor_lease{
        {}, std::make_shared<TensorLease>(), request.access != LeaseAccess::kRead}));
  }
  FOREBAY_RETURN_IF_ERROR(session.AcquireAll(wanted, given));
  for (size_t i = 0; i < made.size(); ++i) {
    *made[i]->shared = std::move(given[i]);
    leases[i] = made[i].release();
  }
  return absl::OkStatus();
}

std::span<const std::byte> BytesOf(const TensorLease& lease) {
  switch (lease.plane()) {
    case TensorPlane::kW16:
      return std::as_bytes(lease.bf16());
    case TensorPlane::kRaw:
      return lease.bytes();
    default:
      return std::as_bytes(lease.values());
  }
}

DLDataType ElementTypeOf(TensorPlane plane) {
  if (plane == TensorPlane::kRaw) return kBytes;
  return TypeOf(plane == TensorPlane::kW16 ? DType::kBF16 : DType::kF32);
}

void* NewTensorOf(const forebay_tensor_lease& lease) {
  const TensorLease& values = *lease.shared;
  const auto bytes = BytesOf(values);
  const TensorSpec& tensor = values.tensor();
  return NewTensor(lease.shared, const_cast<std::byte*>(bytes.data()),
                   ElementTypeOf(values.plane()),
                   tensor.raw ? Shape{static_cast<int64_t>(bytes.size())} : tensor.shape);
}

absl::Status Release(forebay_tensor_lease* lease) {
  if (lease->is_written && lease->shared.use_count() > 1) {
    return UsageError(fmt::format(
        "'{}' is leased for writing, and a DLPack tensor of it is still used, which could change "
        "what is being written. Let it go before the release",
        lease->shared->tensor().name));
  }
  // USAGE says that nothing has changed, and so the lease has not ended here either.
  if (lease->is_written && lease->shared->OutlivesSession()) {
    return UsageError(
        fmt::format("'{}' is leased for writing, and its forebay_tensors were destroyed: nothing "
                    "of it is written any more. Discard it",
                    lease->shared->tensor().name));
  }
  const std::unique_ptr<forebay_tensor_lease> ended(lease);
  return lease->is_written ? lease->shared->Release() : absl::OkStatus();
}

// ---- What is committed -------------------------------------------------------------------------

absl::Status Read(TensorSession& session, int32_t tensor, int32_t plane, int64_t first, int64_t num,
                  void* values) {
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec, TensorOf(session.inventory(), tensor));
  FOREBAY_ASSIGN_OR_RETURN(const TensorPlane of, PlaneOf(plane));
  if (num < 0) return UsageError(fmt::format("{} elements are asked for", num));
  if (num > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(values, "values"));
  const auto count = static_cast<size_t>(num);
  switch (of) {
    case TensorPlane::kW16:
      return session.ReadCommittedW16(spec->name, first, {static_cast<Bf16*>(values), count});
    case TensorPlane::kRaw:
      return session.ReadCommittedRaw(spec->name, first, {static_cast<std::byte*>(values), count});
    default:
      return session.ReadCommitted(spec->name, of, first, {static_cast<float*>(values), count});
  }
}

// body(session) as one call.
template <typename Body>
int32_t RunOnTensors(forebay_tensors* tensors, char** message, const Body& body) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(tensors, "tensors"));
    return body(*tensors->session);
  });
}

}  // namespace
}  // namespace forebay::capi

using forebay::Json;
using forebay::TensorSession;
using forebay::capi::CheckPointer;
using forebay::capi::Give;
using forebay::capi::Run;
using forebay::capi::RunOnTensors;

extern "C" {

int32_t forebay_tensors_create(const forebay_tensors_options* options,
                               const forebay_inventory* inventory, forebay_tensors** tensors,
                               char** message) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(tensors, "tensors"));
    FOREBAY_ASSIGN_OR_RETURN(auto made, forebay::capi::Create(options, inventory));
    *tensors = made.release();
    return absl::OkStatus();
  });
}

int32_t forebay_tensors_open(const forebay_tensors_options* options, forebay_tensors** tensors,
                             char** message) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(tensors, "tensors"));
    FOREBAY_ASSIGN_OR_RETURN(auto made, forebay::capi::Open(options));
    *tensors = made.release();
    return absl::OkStatus();
  });
}

void forebay_tensors_destroy(forebay_tensors* tensors) {
  forebay::capi::Destroy(tensors);
}

int32_t forebay_tensors_inventory_json(forebay_tensors* tensors, char** json, char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) {
    return Give(forebay::capi::InventoryJson(session).dump(), json);
  });
}

int32_t forebay_tensors_acquire(forebay_tensors* tensors, const forebay_lease_request* requests,
                                size_t num_requests, forebay_tensor_lease** leases,
                                char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) -> absl::Status {
    if (num_requests == 0) return absl::OkStatus();
    FOREBAY_RETURN_IF_ERROR(CheckPointer(requests, "requests"));
    FOREBAY_RETURN_IF_ERROR(CheckPointer(leases, "leases"));
    return forebay::capi::Acquire(session, {requests, num_requests}, leases);
  });
}

int32_t forebay_tensors_expect(forebay_tensors* tensors, int32_t tensor, int32_t plane,
                               char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const auto* const spec,
                             forebay::capi::TensorOf(session.inventory(), tensor));
    FOREBAY_ASSIGN_OR_RETURN(const auto of, forebay::capi::PlaneOf(plane));
    return session.Expect(spec->name, of);
  });
}

void* forebay_tensor_lease_data(const forebay_tensor_lease* lease, size_t* num_bytes) {
  if (!forebay::capi::IsUsable(lease)) return nullptr;
  const auto bytes = forebay::capi::BytesOf(*lease->shared);
  if (num_bytes != nullptr) *num_bytes = bytes.size();
  return const_cast<std::byte*>(bytes.data());
}

void* forebay_tensor_lease_dlpack(forebay_tensor_lease* lease) {
  if (!forebay::capi::IsUsable(lease)) return nullptr;
  try {
    return forebay::capi::NewTensorOf(*lease);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

int32_t forebay_tensor_lease_release(forebay_tensor_lease* lease, char** message) {
  return Run(message, [&]() -> absl::Status {
    if (lease == nullptr) return absl::OkStatus();
    FOREBAY_RETURN_IF_ERROR(CheckPointer(lease, "lease"));
    return forebay::capi::Release(lease);
  });
}

void forebay_tensor_lease_discard(forebay_tensor_lease* lease) {
  forebay::capi::Destroy(lease);
}

int32_t forebay_tensors_commit(forebay_tensors* tensors, int64_t step, const char* user,
                               size_t user_length, char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const Json object, forebay::capi::ObjectOf(user, user_length, "user"));
    return session.Commit(step, object);
  });
}

int32_t forebay_tensors_abort(forebay_tensors* tensors, char** message) {
  return RunOnTensors(tensors, message, [](TensorSession& session) { return session.Abort(); });
}

int64_t forebay_tensors_committed_step(forebay_tensors* tensors) {
  if (!forebay::capi::IsUsable(tensors)) return -1;
  const auto committed = tensors->session->committed();
  return committed.has_value() ? committed->step : -1;
}

int32_t forebay_tensors_user_json(forebay_tensors* tensors, char** json, char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) {
    const auto committed = session.committed();
    const bool has_user = committed.has_value() && committed->trainer.is_object();
    return Give(has_user ? committed->trainer.dump() : "{}", json);
  });
}

int32_t forebay_tensors_read(forebay_tensors* tensors, int32_t tensor, int32_t plane, int64_t first,
                             int64_t num, void* values, char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession& session) {
    return forebay::capi::Read(session, tensor, plane, first, num, values);
  });
}

int32_t forebay_tensors_stats_json(forebay_tensors* tensors, char** json, char** message) {
  return RunOnTensors(tensors, message, [&](TensorSession&) {
    return Give(forebay::capi::StatsJson(*tensors).dump(), json);
  });
}

}  // extern "C"
