// The steps of forebay_layers: settings of c.h to those of LayerSession.
#include <algorithm>

#include "forebay/base/errors.h"
#include "forebay/capi/c_layers.h"
#include "forebay/capi/c_optimizer.h"
#include "forebay/offload/missed_updates.h"

namespace forebay::capi {
namespace {

// A commit carries the caller's object, and the number of skipped steps, which do not count in the
// optimizer's formulas.
constexpr char kUserKey[] = "user";
constexpr char kSkippedKey[] = "skipped";

Json KeptOf(Json user, int64_t num_skipped) {
  Json kept = {{kUserKey, std::move(user)}};
  if (num_skipped > 0) kept[kSkippedKey] = num_skipped;
  return kept;
}

absl::StatusOr<int64_t> SkippedOf(const Json& kept) {
  if (!kept.is_object() || !kept.contains(kSkippedKey)) return 0;
  const std::optional<int64_t> skipped = IntegerOf(kept[kSkippedKey]);
  if (skipped.has_value() && *skipped >= 0) return *skipped;
  return CorruptError("the commit of the store has no number of skipped steps");
}

}  // namespace

// ---- Leases ------------------------------------------------------------------------------------

void LayersState::Release(WeightsLease lease, Event* done) {
  {
    const std::lock_guard lock(released_mutex_);
    released_.push_back({std::move(lease), done});
  }
  // In a call of this thread, which has the mutex: before the next one.
  if (caller_ == std::this_thread::get_id()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) EndReleased();
}

void LayersState::EndReleased() {
  std::vector<Released> released;
  {
    const std::lock_guard lock(released_mutex_);
    released.swap(released_);
  }
  for (Released& each : released) each.lease.Release(each.done);
}

SharedLease::~SharedLease() {
  Event* done = nullptr;
  if (!streams_.empty()) {
    done = used_;
    state_->device()->EndUses(streams_, *used_);
  }
  state_->Release(std::move(lease_), done);
}

absl::Status SharedLease::MakeReady(void* native_stream) {
  if (used_ == nullptr) return absl::OkStatus();
  const std::lock_guard lock(streams_mutex_);
  FOREBAY_RETURN_IF_ERROR(state_->device()->MakeReady(lease_.weights(), native_stream));
  if (std::ranges::find(streams_, native_stream) == streams_.end()) {
    streams_.push_back(native_stream);
  }
  return absl::OkStatus();
}

DLDevice SharedLease::device() const {
  if (used_ == nullptr) return {.device_type = 1, .device_id = 0};
  return {.device_type = 2, .device_id = state_->device()->index()};
}

const TensorSpec* SharedLease::Find(int tensor) const {
  const Inventory& inventory = state_->run().inventory();
  if (tensor < 0 || tensor >= static_cast<int>(inventory.tensors().size())) return nullptr;
  const TensorSpec& spec = inventory.tensors()[static_cast<size_t>(tensor)];
  return spec.layer == lease_.layer() ? &spec : nullptr;
}

const std::byte* SharedLease::DataOf(const TensorSpec& tensor) const {
  const LayerWeights& weights = lease_.weights();
  return weights.data.data() + tensor.offset_elems * SizeOf(weights.dtype);
}

void LayersState::TellRanks(const absl::Status& error) {
  switch (ExitCodeOf(error)) {
    case ExitCode::kUsage:        // nothing has changed
    case ExitCode::kBadInput:     // there is no store
    case ExitCode::kEnvironment:  // of the ranks, which know it, or nothing was begun
      return;
    default:
      run_->Abort(error);
  }
}

// ---- Steps -------------------------------------------------------------------------------------

absl::StatusOr<LayerSession*> LayersState::Session() {
  if (run_->session() != nullptr) return run_->session();
  return UsageError(run_->IsFilling()
                        ? "the store is being filled. Call forebay_layers_start before"
                        : "there is no store. Call forebay_layers_create or _open before");
}

absl::Status LayersState::AddDeviceGradient(int tensor, DType dtype, const void* data,
                                            size_t num_bytes, void* native_stream) {
  if (device_ == nullptr) {
    return UsageError("these layers are lent in RAM. Make them with options.device = FOREBAY_CUDA");
  }
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(OpenDevice());
  return device_->AddGradient(*session, tensor, dtype, data, num_bytes, native_stream,
                              staging_.bytes());
}

absl::Status LayersState::LandGradient() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  return device_ == nullptr ? absl::OkStatus() : device_->LandGradient(*session);
}

absl::Status LayersState::AddGradient(int tensor, DType dtype, std::span<const std::byte> elems) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(LandGradient());
  return session->AddGradient(tensor, dtype, elems);
}

absl::Status LayersState::CloseLayer(int layer) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(LandGradient());
  return session->CloseLayer(layer);
}

absl::Status LayersState::OpenDevice() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  if (device_ == nullptr) return absl::OkStatus();
  if (staging_.size_bytes() == 0) {
    FOREBAY_ASSIGN_OR_RETURN(
        staging_, HostBuffer::Create(&run_->budget(), "gradients from the GPU",
                                     device_->staging_bytes(), {.device = device_->device()}));
  }
  return device_->Open(*session);
}

absl::Status LayersState::CheckNothingIsExpected(std::string_view call) const {
  return device_ == nullptr ? absl::OkStatus() : device_->CheckNothingIsExpected(call);
}

absl::Status LayersState::Expect(std::span<const int> layers) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(OpenDevice());
  if (device_ != nullptr) {
    device_->Expect(layers);
  } else {
    session->Expect(layers);
  }
  return absl::OkStatus();
}

absl::Status LayersState::CancelExpected() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  if (device_ != nullptr) device_->CancelExpected();
  session->CancelAnnounced();
  return absl::OkStatus();
}

absl::StatusOr<DeviceLeases::Lent> LayersState::Acquire(int layer) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(OpenDevice());
  if (device_ != nullptr) return device_->Acquire(layer);
  DeviceLeases::Lent lent;
  FOREBAY_ASSIGN_OR_RETURN(lent.weights, session->Acquire(layer));
  return lent;
}

absl::Status LayersState::Abandon() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  if (device_ != nullptr) {
    device_->CancelExpected();
    device_->DropGradient();
  }
  session->Abandon();
  return absl::OkStatus();
}

absl::StatusOr<StepSettings> LayersState::SettingsOf(const forebay_step_options& options) {
  const double loss_scale = options.loss_scale == 0 ? 1 : options.loss_scale;
  if (!(options.clip >= 0) || !std::isfinite(loss_scale) || loss_scale <= 0) {
    return UsageError(fmt::format("clip is {} and loss_scale {}: they are 0 or above", options.clip,
                                  options.loss_scale));
  }
  return StepSettings{.clip = options.clip, .loss_scale = loss_scale};
}

absl::StatusOr<std::vector<ParameterGroup>> LayersState::GroupsOf(
    const forebay_step_options& options) const {
  if (static_cast<int64_t>(options.num_groups) != num_groups_) {
    return UsageError(fmt::format("the step has {} groups, and the tensors name {}",
                                  options.num_groups, num_groups_));
  }
  FOREBAY_RETURN_IF_ERROR(CheckPointer(options.groups, "groups"));
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < options.num_groups; ++i) {
    FOREBAY_ASSIGN_OR_RETURN(groups.emplace_back(), GroupOf(options.groups[i], optimizer_));
  }
  return groups;
}

// As torch.nn.utils.clip_grad_norm_ of the gradients divided by the loss scale.
UpdateScalars LayersState::ScalarsAt(double norm) const {
  UpdateScalars scalars;
  scalars.step = run_->session()->released_step() + 1 - num_skipped_;
  scalars.lr = 1;  // that of the groups
  const double unscaled = norm / Divisor();
  const double clip = settings_.clip > 0 ? std::min(1.0, settings_.clip / (unscaled + 1e-6)) : 1.0;
  scalars.gradient_scale = clip / Divisor();
  return scalars;
}

absl::Status LayersState::BeginStep(const forebay_step_options& options) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsExpected("begin_step"));
  StepUpdate update;
  FOREBAY_ASSIGN_OR_RETURN(update.groups, GroupsOf(options));
  FOREBAY_ASSIGN_OR_RETURN(const StepSettings settings, SettingsOf(options));
  // BeginStep asks for the scalars already.
  const StepSettings before = std::exchange(settings_, settings);
  update.scalars_of = [this](double norm) { return ScalarsAt(norm); };
  if (settings_.clip > 0) {
    // At this norm the factor is 1 exactly.
    update.most_unclipped_norm = (settings_.clip - 1e-6) * Divisor();
  }
  const absl::Status status = session->BeginStep(std::move(update));
  if (!status.ok()) settings_ = before;
  return status;
}

absl::Status LayersState::SetStep(const forebay_step_options& options) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_ASSIGN_OR_RETURN(const StepSettings settings, SettingsOf(options));
  if (options.num_groups > 0) {
    FOREBAY_ASSIGN_OR_RETURN(std::vector<ParameterGroup> groups, GroupsOf(options));
    FOREBAY_RETURN_IF_ERROR(session->SetGroups(std::move(groups)));
  }
  const StepSettings before = std::exchange(settings_, settings);
  const absl::Status status = session->RefreshScalars();
  if (!status.ok()) settings_ = before;
  return status;
}

absl::StatusOr<StepGradients> LayersState::FinishBackward() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(LandGradient());
  FOREBAY_ASSIGN_OR_RETURN(StepGradients gradients, session->FinishBackward());
  gradients.norm /= Divisor();
  return gradients;
}

absl::Status LayersState::EndStep(Json user, CommitWhen when, bool is_update) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsExpected(is_update ? "update" : "skip"));
  if (is_update) return session->Update(KeptOf(std::move(user), num_skipped_), when);
  const int64_t before = session->released_step();
  const absl::Status status = session->Skip(KeptOf(std::move(user), num_skipped_ + 1), when);
  if (session->released_step() > before) ++num_skipped_;
  return status;
}

absl::Status LayersState::Commit(std::optional<Json> user) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsExpected("commit"));
  if (!user.has_value()) return session->Commit();
  return session->Commit(KeptOf(*std::move(user), num_skipped_));
}

absl::Status LayersState::CommitOnceApplied(std::optional<Json> user) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  if (!user.has_value()) return session->CommitOnceApplied();
  return session->CommitOnceApplied(KeptOf(*std::move(user), num_skipped_));
}

// ---- Start and end -----------------------------------------------------------------------------

absl::Status LayersState::Start(Json user) {
  FOREBAY_RETURN_IF_ERROR(run_->Start(KeptOf(std::move(user), 0)));
  return OpenDevice();
}

absl::Status LayersState::CreateFrom(const std::vector<std::string>& folders) {
  FOREBAY_RETURN_IF_ERROR(run_->CreateFrom(folders));
  return TakeCommit();
}

absl::Status LayersState::Open() {
  FOREBAY_RETURN_IF_ERROR(run_->Open());
  return TakeCommit();
}

absl::Status LayersState::TakeCommit() {
  FOREBAY_ASSIGN_OR_RETURN(num_skipped_, SkippedOf(run_->session()->store().committed().trainer));
  return OpenDevice();
}

absl::StatusOr<Json> LayersState::CommittedUser() {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  const Json& kept = session->store().committed().trainer;
  return kept.is_object() && kept.contains(kUserKey) ? kept[kUserKey] : Json::object();
}

absl::StatusOr<int64_t> LayersState::UpdatesOf(int tensor) {
  FOREBAY_ASSIGN_OR_RETURN(LayerSession* const session, Session());
  const CommitInfo& committed = session->store().committed();
  const size_t num_tensors = session->store().inventory().tensors().size();
  if (tensor < 0 || static_cast<size_t>(tensor) >= num_tensors) {
    return UsageError(fmt::format("there is no tensor {}", tensor));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<int64_t> missed,
                           MissedUpdatesOf(committed, num_tensors));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t skipped, SkippedOf(committed.trainer));
  const int64_t missed_by_it = missed.empty() ? 0 : missed[static_cast<size_t>(tensor)];
  return committed.step - skipped - missed_by_it;
}

}  // namespace forebay::capi
