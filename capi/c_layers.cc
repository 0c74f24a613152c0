// Layers: planned, made, opened and asked how they stand.
#include "forebay/capi/c_layers.h"

#include <algorithm>
#include <array>

#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/capi/c_inventory.h"
#include "forebay/capi/c_optimizer.h"
#include "forebay/capi/c_store.h"

namespace forebay::capi {
namespace {

absl::StatusOr<TierChoice> TierOf(int32_t tier, std::string_view name) {
  return Choice(tier, std::array{TierChoice::kAuto, TierChoice::kHost, TierChoice::kNvme}, name);
}

absl::Status ReadNumbers(const forebay_layers_options& options, EmbeddedOptions& embedded) {
  for (const auto& [name, value] :
       {std::pair<std::string_view, int64_t>{"ram_bytes", options.ram_bytes},
        {"commit_every (-1: on demand)", options.commit_every == -1 ? 0 : options.commit_every},
        {"num_threads", options.num_threads},
        {"num_open_layers", options.num_open_layers},
        {"num_window_layers", options.num_window_layers},
        {"reduce_bucket_bytes", options.reduce_bucket_bytes},
        {"tile_elems", options.tile_elems}}) {
    if (value < 0) return UsageError(fmt::format("{} is {}, below 0", name, value));
  }
  constexpr int32_t kMostThreads = 4096;
  if (options.num_threads > kMostThreads) {
    return UsageError(fmt::format("num_threads is {}, and has to be from 0 to {}",
                                  options.num_threads, kMostThreads));
  }
  OffloadOptions& offload = embedded.offload;
  offload.ram_bytes = options.ram_bytes;
  embedded.commits_on_demand = options.commit_every == -1;
  offload.commit_every = std::max<int64_t>(0, options.commit_every);
  embedded.threads = options.num_threads;
  embedded.num_open_layers = options.num_open_layers == 0 ? 2 : options.num_open_layers;
  if (options.tile_elems > 0) offload.tile_elems = options.tile_elems;
  if (options.num_window_layers > 0) {
    offload.buffers = StepBuffers{.num_block_buffers = options.num_window_layers};
  }
  return absl::OkStatus();
}

absl::Status CheckUpdateInBackward(const forebay_layers_options& options) {
  if (options.durability == FOREBAY_DURABILITY_NONE) {
    return UsageError(
        "update_in_backward writes before a step is known to be right, and durability is "
        "FOREBAY_DURABILITY_NONE, which keeps no copy to go back to. Leave one of the two out");
  }
  if (options.commit_every > 1) {
    return UsageError(fmt::format(
        "update_in_backward commits every step, and commit_every is {}. Make it 0, 1 or -1",
        options.commit_every));
  }
  return absl::OkStatus();
}

absl::StatusOr<EmbeddedOptions> EmbeddedOptionsOf(const forebay_layers_options& options,
                                                  int num_layers) {
  EmbeddedOptions embedded;
  OffloadOptions& offload = embedded.offload;
  FOREBAY_ASSIGN_OR_RETURN(offload.nvme, FoldersOf(options.folders, options.num_folders));
  if (options.folder_weights != nullptr) {
    offload.nvme_weights.assign(options.folder_weights,
                                options.folder_weights + options.num_folders);
  }
  FOREBAY_RETURN_IF_ERROR(ReadNumbers(options, embedded));
  FOREBAY_ASSIGN_OR_RETURN(const DType weights, DTypeOf(options.weight_dtype, "weight_dtype"));
  offload.layout = LayoutOf(weights);
  FOREBAY_ASSIGN_OR_RETURN(offload.grad_dtype, DTypeOf(options.gradient_dtype, "gradient_dtype"));
  FOREBAY_ASSIGN_OR_RETURN(offload.optimizer, OptimizerOf(options.optimizer));
  offload.momentum = options.momentum;
  offload.nesterov = options.nesterov != 0;
  FOREBAY_ASSIGN_OR_RETURN(offload.weights_tier, TierOf(options.weights_tier, "weights_tier"));
  FOREBAY_ASSIGN_OR_RETURN(offload.state_tier, TierOf(options.state_tier, "state_tier"));
  FOREBAY_ASSIGN_OR_RETURN(offload.gradients_tier,
                           TierOf(options.gradients_tier, "gradients_tier"));
  FOREBAY_ASSIGN_OR_RETURN(
      offload.durability,
      Choice(options.durability,
             std::array{Durability::kAuto, Durability::kNone, Durability::kStep}, "durability"));
  FOREBAY_ASSIGN_OR_RETURN(offload.engine, EngineOf(options.engine));
  FOREBAY_ASSIGN_OR_RETURN(
      embedded.pass,
      Choice(options.pass, std::array{PassKind::kModule, PassKind::kUpdateOnly}, "pass"));
  offload.clip = 0;  // that of the steps
  offload.gradients = GradientChoice::kHold;
  if (options.update_in_backward == 0) return embedded;
  FOREBAY_RETURN_IF_ERROR(CheckUpdateInBackward(options));
  offload.gradients = GradientChoice::kSpeculate;
  // The first layer's gradient comes last, and nothing of the pass would hide its update.
  offload.speculate_layers = std::max(0, num_layers - 1);
  return embedded;
}

// nullptr: layers are lent in RAM.
absl::StatusOr<std::unique_ptr<DeviceLeases>> DeviceOf(const forebay_layers_options& options,
                                                       const Inventory& inventory) {
  FOREBAY_ASSIGN_OR_RETURN(
      const DeviceKind kind,
      Choice(options.device, std::array{DeviceKind::kHost, DeviceKind::kCuda}, "device"));
  if (kind == DeviceKind::kHost) {
    if (options.device_index == 0) return std::unique_ptr<DeviceLeases>();
    return UsageError(fmt::format("device_index is {}, and device is FOREBAY_HOST, which has none",
                                  options.device_index));
  }
  if (options.pass == FOREBAY_PASS_UPDATE_ONLY) {
    return UsageError("pass is FOREBAY_PASS_UPDATE_ONLY, which lends no weights for a device");
  }
  FOREBAY_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(options.weight_dtype, "weight_dtype"));
  constexpr int kDefaultPlaces = 4;
  constexpr int kFewestPlaces = 3;
  const int num_places = options.num_window_layers == 0
                             ? kDefaultPlaces
                             : std::max(kFewestPlaces, options.num_window_layers);
  return DeviceLeases::Create(options.device_index, num_places, inventory, dtype);
}

absl::StatusOr<forebay_layers*> New(const forebay_layers_options* given,
                                    const forebay_inventory* inventory) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(inventory, "inventory"));
  const std::lock_guard lock(inventory->mutex);
  FOREBAY_ASSIGN_OR_RETURN(const forebay_layers_options options, OptionsOf(given));
  FOREBAY_ASSIGN_OR_RETURN(EmbeddedOptions embedded,
                           EmbeddedOptionsOf(options, inventory->inventory.num_streamed_layers()));
  int num_groups = 1;
  for (const int group : inventory->group_of_tensor) num_groups = std::max(num_groups, group + 1);
  embedded.groups.groups.resize(static_cast<size_t>(num_groups));
  embedded.groups.of_tensor = inventory->group_of_tensor;
  const OptimizerKind optimizer = embedded.offload.optimizer;
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLeases> device,
                           DeviceOf(options, inventory->inventory));
  if (device != nullptr) {
    embedded.device = device->device();
    embedded.device_staging_bytes = device->staging_bytes();
  }
  std::shared_ptr<RanksState> ranks;
  if (options.ranks != nullptr) {
    ranks = options.ranks->state;
    embedded.ranks = ranks->communicator.get();
  }
  embedded.zero_stage = options.zero_stage;
  embedded.offload.reduce_bucket_bytes = options.reduce_bucket_bytes;
  FOREBAY_ASSIGN_OR_RETURN(embedded.offload.reduce_dtype,
                           DTypeOf(options.reduce_dtype, "reduce_dtype"));
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddedRun> run,
                           EmbeddedRun::Plan(std::move(embedded), inventory->inventory));
  return new forebay_layers{{},
                            std::make_shared<LayersState>(std::move(ranks), std::move(device),
                                                          std::move(run), optimizer, num_groups)};
}

// ---- Filling -----------------------------------------------------------------------------------

absl::Status CheckBytes(const TensorSpec& tensor, DType dtype, const void* data, size_t num_bytes) {
  const auto wanted = static_cast<size_t>(tensor.num_elems * (tensor.raw ? 1 : SizeOf(dtype)));
  if (num_bytes != wanted) {
    return UsageError(
        fmt::format("'{}' has {} bytes, and {} are given", tensor.name, wanted, num_bytes));
  }
  return wanted == 0 ? absl::OkStatus() : CheckPointer(data, "data");
}

void Widen(DType dtype, const void* data, std::span<float> values) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(values.data(), data, values.size_bytes());
      return;
    case DType::kBF16:
      std::transform(static_cast<const Bf16*>(data), static_cast<const Bf16*>(data) + values.size(),
                     values.begin(), Bf16ToFloat);
      return;
    case DType::kF16:
      std::transform(static_cast<const Fp16*>(data), static_cast<const Fp16*>(data) + values.size(),
                     values.begin(), Fp16ToFloat);
  }
}

absl::Status Fill(LayersState& state, int32_t tensor, int32_t dtype, const void* data,
                  size_t num_bytes) {
  if (!state.run().IsFilling()) {
    return UsageError("no store is being filled. Call forebay_layers_create before");
  }
  const std::vector<TensorSpec>& tensors = state.run().inventory().tensors();
  if (tensor < 0 || tensor >= static_cast<int32_t>(tensors.size())) {
    return UsageError(fmt::format("there is no tensor {}", tensor));
  }
  const TensorSpec& spec = tensors[static_cast<size_t>(tensor)];
  if (spec.raw) {
    FOREBAY_RETURN_IF_ERROR(CheckBytes(spec, DType::kF32, data, num_bytes));
    FOREBAY_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, state.run().BytesToFill(tensor));
    std::memcpy(bytes.data(), data, num_bytes);
    return absl::OkStatus();
  }
  FOREBAY_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype, "dtype"));
  FOREBAY_RETURN_IF_ERROR(CheckBytes(spec, type, data, num_bytes));
  return state.run().Fill(tensor, [&](int64_t first, std::span<float> values) {
    Widen(type, static_cast<const std::byte*>(data) + first * SizeOf(type), values);
  });
}

// ---- What is committed -------------------------------------------------------------------------

absl::Status Read(LayersState& state, int32_t tensor, int32_t plane, int64_t first,
                  int64_t num_elems, float* values) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, state.Session());
  FOREBAY_ASSIGN_OR_RETURN(
      const TensorPlane of,
      Choice(plane, std::array{TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}, "plane"));
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec, TensorOf(state.run().inventory(), tensor));
  FOREBAY_RETURN_IF_ERROR(CheckRange(*spec, first, num_elems));
  const MomentSet& moments = session->store().tiles().moment_set();
  if (spec->raw || (of == TensorPlane::kM && !moments.m) || (of == TensorPlane::kV && !moments.v)) {
    return UsageError(fmt::format("'{}' has no plane {}", spec->name, plane));
  }
  if (session->committed_step() != session->released_step()) {
    return UsageError("the last step is not committed. Call forebay_layers_commit before");
  }
  if (num_elems == 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CheckPointer(values, "values"));
  return state.run().ReadTensor(tensor, of, first, {values, static_cast<size_t>(num_elems)});
}

Json PlanJson(const OffloadPlan& plan, const DeviceLeases* device) {
  Json terms = Json::array();
  for (const PlanTerm& term : plan.terms) {
    terms.push_back(
        {{"name", term.name}, {"ram_bytes", term.host_bytes}, {"disk_bytes", term.nvme_bytes}});
  }
  return {{"ram_budget_bytes", plan.ram_budget_bytes},
          {"ram_bytes", plan.host_bytes},
          {"disk_bytes", plan.nvme_bytes},
          {"device_bytes", device == nullptr ? 0 : device->device_bytes()},
          {"read_bytes_per_step", plan.read_bytes_per_step},
          {"write_bytes_per_step", plan.write_bytes_per_step},
          {"copies", plan.num_slots},
          {"lacks_room_for_two", plan.lacks_room_for_two},
          {"weights_in_ram_bytes", plan.placement.host_weight_bytes},
          {"state_in_ram_bytes", plan.placement.host_state_bytes},
          {"terms", terms}};
}

absl::StatusOr<Json> StatsJson(LayersState& state) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, state.Session());
  EmbeddedRun& run = state.run();
  const IoStats io = session->store().engine().stats();
  const DeviceLeases* const device = state.device();
  const CollectiveTraffic traffic = run.traffic();
  Json memory = Json::object();
  for (const auto& [purpose, bytes] : run.budget().by_purpose()) memory[purpose] = bytes;
  return Json{{"engine", run.engine_line()},
              {"read_bytes", io.read_bytes},
              {"write_bytes", io.write_bytes},
              {"wait_s", session->waits().Total()},
              {"update_s", session->update_s()},
              {"committed_step", session->committed_step()},
              {"step", session->released_step()},
              {"num_ranks", run.num_ranks()},
              {"sent_to_ranks_bytes", traffic.sent_bytes},
              {"received_from_ranks_bytes", traffic.received_bytes},
              {"leased_layers", device == nullptr ? session->lent_layers() : device->LentLayers()},
              {"device", device == nullptr ? "host" : device->device()->name()},
              {"device_bytes", device == nullptr ? 0 : device->device_bytes()},
              {"device_copied_bytes", device == nullptr ? 0 : device->copied_bytes()},
              {"ram_bytes", run.budget().used_bytes()},
              {"peak_ram_bytes", run.budget().peak_bytes()},
              {"ram_budget_bytes", run.plan().ram_budget_bytes},
              {"memory", memory}};
}

}  // namespace
}  // namespace forebay::capi

using forebay::Json;
using forebay::capi::CheckPointer;
using forebay::capi::Give;
using forebay::capi::LayersState;
using forebay::capi::ObjectOf;
using forebay::capi::Run;
using forebay::capi::RunOn;

extern "C" {

int32_t forebay_layers_new(const forebay_layers_options* options,
                           const forebay_inventory* inventory, forebay_layers** layers,
                           char** message) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(layers, "layers"));
    FOREBAY_ASSIGN_OR_RETURN(*layers, forebay::capi::New(options, inventory));
    return absl::OkStatus();
  });
}

void forebay_layers_destroy(forebay_layers* layers) {
  forebay::capi::Destroy(layers);
}

int32_t forebay_layers_plan_json(forebay_layers* layers, char** json, char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return Give(forebay::capi::PlanJson(state.run().plan(), state.device()).dump(), json);
  });
}

int32_t forebay_layers_exists(forebay_layers* layers) {
  if (!forebay::capi::IsUsable(layers)) return layers == nullptr ? 0 : -1;
  const LayersState::Call call(*layers->state);
  const absl::StatusOr<bool> exists = layers->state->run().Exists();
  if (exists.ok()) return *exists ? 1 : 0;
  // The reason is that of the call which opens it, and it says it.
  layers->state->TellRanks(exists.status());
  return -1;
}

int32_t forebay_layers_remove(forebay_layers* layers, char** message) {
  return RunOn(layers, message, [](LayersState& state) { return state.run().RemoveUnused(); });
}

int32_t forebay_layers_create(forebay_layers* layers, char** message) {
  return RunOn(layers, message, [](LayersState& state) { return state.run().BeginCreate(); });
}

int32_t forebay_layers_fill(forebay_layers* layers, int32_t tensor, int32_t dtype, const void* data,
                            size_t num_bytes, char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return forebay::capi::Fill(state, tensor, dtype, data, num_bytes);
  });
}

int32_t forebay_layers_start(forebay_layers* layers, const char* user, size_t user_length,
                             char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(Json object, ObjectOf(user, user_length, "user"));
    return state.Start(std::move(object));
  });
}

int32_t forebay_layers_create_from(forebay_layers* layers, const char* const* folders,
                                   size_t num_folders, char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                             forebay::capi::FoldersOf(folders, num_folders));
    return state.CreateFrom(paths);
  });
}

int32_t forebay_layers_open(forebay_layers* layers, char** message) {
  return RunOn(layers, message, [](LayersState& state) { return state.Open(); });
}

void forebay_layers_stop(forebay_layers* layers) {
  if (forebay::capi::IsUsable(layers)) layers->state->run().Stop();
}

int64_t forebay_layers_committed_step(forebay_layers* layers) {
  if (!forebay::capi::IsUsable(layers)) return -1;
  const LayersState::Call call(*layers->state);
  const auto session = layers->state->Session();
  return session.ok() ? (*session)->committed_step() : -1;
}

int64_t forebay_layers_step(forebay_layers* layers) {
  if (!forebay::capi::IsUsable(layers)) return -1;
  const LayersState::Call call(*layers->state);
  const auto session = layers->state->Session();
  return session.ok() ? (*session)->released_step() : -1;
}

int32_t forebay_layers_user_json(forebay_layers* layers, char** json, char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const Json user, state.CommittedUser());
    return Give(user.dump(), json);
  });
}

int32_t forebay_layers_read(forebay_layers* layers, int32_t tensor, int32_t plane, int64_t first,
                            int64_t num_elems, float* values, char** message) {
  return RunOn(layers, message, [&](LayersState& state) {
    return forebay::capi::Read(state, tensor, plane, first, num_elems, values);
  });
}

int32_t forebay_layers_updates_of(forebay_layers* layers, int32_t tensor, int64_t* num_updates,
                                  char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(num_updates, "num_updates"));
    FOREBAY_ASSIGN_OR_RETURN(*num_updates, state.UpdatesOf(tensor));
    return absl::OkStatus();
  });
}

int32_t forebay_layers_raw(forebay_layers* layers, int32_t tensor, void** data, size_t* num_bytes,
                           char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(data, "data"));
    FOREBAY_ASSIGN_OR_RETURN(forebay::LayerSession* const session, state.Session());
    FOREBAY_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, session->RawTensor(tensor));
    *data = bytes.data();
    if (num_bytes != nullptr) *num_bytes = bytes.size();
    return absl::OkStatus();
  });
}

int32_t forebay_layers_stats_json(forebay_layers* layers, char** json, char** message) {
  return RunOn(layers, message, [&](LayersState& state) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const Json stats, forebay::capi::StatsJson(state));
    return Give(stats.dump(), json);
  });
}

}  // extern "C"
