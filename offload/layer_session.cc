#include "forebay/offload/layer_session.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/collective/gather_values.h"
#include "forebay/offload/missed_updates.h"
#include "forebay/offload/parameter_groups_of.h"
#include "forebay/optimizer/update_modes.h"

namespace forebay {
namespace {

OffloadedOptimizerOptions OptimizerOptionsOf(const LayerSessionOptions& options,
                                             const OffloadPlan& plan, ParameterGroups groups,
                                             std::vector<int64_t> missed_updates) {
  OffloadedOptimizerOptions result;
  result.rule = RuleOf(options.offload);
  result.groups = std::move(groups);
  result.missed_updates = std::move(missed_updates);
  result.arithmetic = options.arithmetic;
  result.gradient_dtype = options.offload.grad_dtype;
  if (options.device_budget != nullptr) {
    result.device = options.device;
    result.device_budget = options.device_budget;
    // Sums over ranks are in RAM.
    result.lands_gradients = options.ranks == nullptr;
  }
  result.num_threads =
      options.offload.update_threads > 0 ? options.offload.update_threads : options.threads;
  result.num_staging_tiles = plan.num_staging_tiles;
  result.num_gradient_tiles = plan.num_gradient_tiles;
  result.hand_over_order = plan.schedule.Handed();
  return result;
}

// The errors that the layers below would call bugs of ours.
absl::Status CheckStore(const OffloadPlan& plan, const TensorStore& store) {
  if (!store.has_commit()) return UsageError("the store of a session has to have a commit");
  const TileMap& tiles = store.tiles();
  const auto is_same_tile = [](const Tile& a, const Tile& b) {
    return a.layer == b.layer && a.num_elems == b.num_elems && a.raw == b.raw &&
           a.stripe == b.stripe;
  };
  const bool fits =
      tiles.layout() == plan.tiles.layout() && tiles.moment_set() == plan.tiles.moment_set() &&
      tiles.num_layers() == plan.tiles.num_layers() &&
      tiles.num_stripes() == plan.tiles.num_stripes() && store.num_slots() == plan.num_slots &&
      std::ranges::equal(tiles.tiles(), plan.tiles.tiles(), is_same_tile);
  if (fits) return absl::OkStatus();
  return UsageError(fmt::format(
      "the plan is for another store: {} layers in {} tiles of {}, {} slots; the store has {} in "
      "{} of {}, and {}",
      plan.tiles.num_layers(), plan.tiles.num_tiles(), NameOf(plan.tiles.layout()), plan.num_slots,
      tiles.num_layers(), tiles.num_tiles(), NameOf(tiles.layout()), store.num_slots()));
}

// One more for layers that got no gradient, while others are open.
int Places(int num_open_layers) {
  return num_open_layers == 0 ? 0 : num_open_layers + 1;
}

absl::Status CheckRanks(const LayerSessionOptions& options, const OffloadPlan& plan) {
  const int num_ranks = options.ranks == nullptr ? 1 : options.ranks->size();
  if (options.parts != nullptr && options.parts->num_parts() != num_ranks) {
    return UsageError(
        fmt::format("the state is divided into {} parts, and the session has {} ranks",
                    options.parts->num_parts(), num_ranks));
  }
  if (options.ranks == nullptr || plan.delay_update_from == 0) return absl::OkStatus();
  return UsageError("a session of several ranks delays no update. Leave out delay_update_from");
}

absl::Status CheckOptions(const LayerSessionOptions& options, const OffloadPlan& plan) {
  FOREBAY_RETURN_IF_ERROR(CheckRanks(options, plan));
  if (options.threads < 1 || options.num_disks < 1 || options.num_open_layers < 0) {
    return UsageError(fmt::format(
        "a session needs a thread and a disk, and 0 open layers or more; it is given {}, {} and {}",
        options.threads, options.num_disks, options.num_open_layers));
  }
  const bool has_device = options.device_budget != nullptr && options.arithmetic == nullptr;
  if (plan.placement.AnyOnDevice() && !has_device) {
    return UsageError(
        "the plan has optimizer state on a device, and the session is given no device_budget, or "
        "another arithmetic than the rule's. Give it the device, or plan without "
        "device_state_bytes");
  }
  const OffloadedOptimizerOptions optimizer = OptimizerOptionsOf(options, plan, {}, {});
  const bool fits = MomentsOf(optimizer.rule) == plan.tiles.moment_set() &&
                    OffloadedOptimizer::GradientAreaBytes(optimizer, plan.placement, plan.tiles) ==
                        plan.gradient_area_bytes;
  if (fits) return absl::OkStatus();
  return UsageError(
      "the plan was made with another optimizer, or for gradients of another type, than the "
      "session "
      "is given. Give both the same OffloadOptions");
}

}  // namespace

// ---- Creation ----------------------------------------------------------------------------------

LayerSession::LayerSession(const OffloadPlan& plan, LayerSessionOptions options,
                           std::unique_ptr<TensorStore> store)
    : plan_(plan),
      options_(std::move(options)),
      hand_over_order_(plan.schedule.Handed()),
      keeps_order_(plan.placement.NumUpdated(UpdateTime::kOnRead) <
                       std::ssize(plan.placement.update_times) ||
                   options_.ranks != nullptr),
      store_(std::move(store)),
      is_handed_(static_cast<size_t>(store_->tiles().num_streamed_layers())),
      committed_step_(store_->committed().step),
      released_step_(committed_step_) {}

absl::StatusOr<std::shared_ptr<LayerSession>> LayerSession::Create(
    const OffloadPlan& plan, LayerSessionOptions options, std::unique_ptr<TensorStore> store,
    MemoryBudget* budget) {
  FOREBAY_RETURN_IF_ERROR(CheckOptions(options, plan));
  FOREBAY_RETURN_IF_ERROR(CheckStore(plan, *store));
  // A store that was opened has none yet.
  FOREBAY_RETURN_IF_ERROR(store->EnsureScratchArea(plan.ScratchBytes()));
  std::shared_ptr<LayerSession> session(
      new LayerSession(plan, std::move(options), std::move(store)));
  const LayerSessionOptions& of_session = session->options_;
  TensorStore* const tensors = session->store_.get();
  FOREBAY_ASSIGN_OR_RETURN(ParameterGroups groups,
                           ParameterGroupsOf(of_session.offload, tensors->inventory()));
  if (!of_session.groups.groups.empty()) groups = of_session.groups;
  FOREBAY_ASSIGN_OR_RETURN(
      std::vector<int64_t> missed,
      MissedUpdatesOf(tensors->committed(), tensors->inventory().tensors().size()));
  session->pool_ = of_session.pool;
  if (session->pool_ == nullptr) {
    session->own_pool_ = std::make_unique<ThreadPool>(of_session.threads, "gradients");
    session->pool_ = session->own_pool_.get();
  }
  FOREBAY_ASSIGN_OR_RETURN(
      session->open_layers_,
      OpenLayers::Create(&session->layers_of_caller(), Places(of_session.num_open_layers),
                         of_session.offload.grad_dtype, budget));
  if (of_session.ranks != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(
        session->sum_, GradientSum::Create(&session->layers_of_caller(), of_session.parts.get(),
                                           of_session.ranks, budget,
                                           {.bucket_bytes = of_session.offload.reduce_bucket_bytes,
                                            .wire = of_session.offload.reduce_dtype,
                                            .tensors_may_lack = of_session.num_open_layers > 0,
                                            .device = of_session.device}));
  }
  FOREBAY_ASSIGN_OR_RETURN(session->raw_, RawTensors::Create(tensors, budget));
  session->lent_.reserve(2 * tensors->inventory().layers().size());
  if (plan.activations.num_spilled > 0) {
    FOREBAY_ASSIGN_OR_RETURN(
        session->activations_,
        SpilledActivations::Create(plan.activations, plan.gradient_area_bytes, tensors, budget,
                                   session->pool_, of_session.device));
  }
  OffloadedOptimizerOptions optimizer =
      OptimizerOptionsOf(of_session, plan, std::move(groups), std::move(missed));
  if (of_session.parts != nullptr) {
    optimizer.sum_over_parts = [of = session.get()](std::span<double> sums,
                                                    absl::FunctionRef<void()> add_own) {
      return of->SumOverParts(sums, add_own);
    };
    const int rank = of_session.ranks->rank();
    for (int layer = 0; layer < tensors->inventory().num_layers(); ++layer) {
      optimizer.first_elems.push_back(of_session.parts->Offsets(layer)[static_cast<size_t>(rank)]);
    }
  }
  FOREBAY_ASSIGN_OR_RETURN(session->optimizer_,
                           OffloadedOptimizer::Create(optimizer, plan.placement, tensors, budget));
  FOREBAY_ASSIGN_OR_RETURN(session->swapper_,
                           Swapper::Create(plan.window, plan.placement, tensors,
                                           session->optimizer_.get(), budget, of_session.device));
  session->optimizer_->modes().SetResidentWeights(session->swapper_->ResidentWeights());
  if (of_session.parts != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(
        session->gathered_,
        GatheredWeights::Create(
            of_session.parts.get(), WeightDType(plan.tiles.layout()),
            {of_session.gathered_for, of_session.num_held_layers, of_session.device},
            of_session.ranks, session->swapper_.get(), budget));
  }
  tensors->ForgetFirstValues();
  return session;
}

LayerSession::~LayerSession() {
  // It updates weights in memory of the window, which ends first.
  if (optimizer_ != nullptr) optimizer_->modes().StopUpdates();
}

int64_t LayerSession::OpenLayerBytes(const Inventory& inventory, int num_open_layers) {
  return OpenLayers::ChargedBytes(inventory, Places(num_open_layers));
}

// ---- What a caller can do wrong ----------------------------------------------------------------

std::string_view LayerSession::NameOf(State state) {
  switch (state) {
    case State::kBetween:
      return "no step has begun";
    case State::kPass:
      return "its pass is under way";
    case State::kMustRepeat:
      return "its pass has to be computed again";
    case State::kDone:
      return "its gradients are complete";
  }
  return "?";
}

absl::Status LayerSession::CheckState(State state, std::string_view call) const {
  if (state_ == state) return absl::OkStatus();
  return UsageError(fmt::format("{} of step {}: {}; it is for when {}", call, released_step_ + 1,
                                NameOf(state_), NameOf(state)));
}

absl::Status LayerSession::CheckNothingIsLent(std::string_view call) const {
  if (lent_.empty()) return absl::OkStatus();
  return UsageError(fmt::format("{}: {} layers are lent, one of them '{}'. Release them before",
                                call, lent_.size(),
                                store_->inventory().layers()[lent_.back()].name));
}

absl::Status LayerSession::CheckNothingIsAnnounced(std::string_view call) const {
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsLent(call));
  if (num_announced_ == 0) return absl::OkStatus();
  return UsageError(fmt::format(
      "{}: {} layers were announced and not acquired. Acquire them before, or cancel them", call,
      num_announced_));
}

absl::Status LayerSession::CheckLayer(int layer) const {
  const int num_layers = store_->tiles().num_streamed_layers();
  if (layer >= 0 && layer < num_layers) return absl::OkStatus();
  return UsageError(fmt::format("there is no layer {}; the last is {}", layer, num_layers - 1));
}

absl::Status LayerSession::CheckOrder(int layer) const {
  const Inventory& inventory = store_->inventory();
  FOREBAY_RETURN_IF_ERROR(CheckLayer(layer));
  if (!keeps_order_ || num_handed_ >= hand_over_order_.size()) return absl::OkStatus();
  const int next = hand_over_order_[num_handed_];
  if (layer == next) return absl::OkStatus();
  return UsageError(fmt::format(
      "the gradient of '{}' came before that of '{}': {} in the order of the plan's schedule. Keep "
      "it{}",
      inventory.layers()[layer].name, inventory.layers()[next].name,
      options_.ranks != nullptr ? "ranks sum them"
                                : "under this plan they are applied as they come,",
      options_.ranks != nullptr ? "" : ", or plan with --gradients=hold and no delay"));
}

// ---- Weights -----------------------------------------------------------------------------------

void LayerSession::Expect(std::span<const int> layers) {
  const int num_layers = store_->tiles().num_streamed_layers();
  for (const int layer : layers) {
    if (layer >= 0 && layer < num_layers) continue;
    announce_error_ =
        UsageError(fmt::format("layer {} was announced; the last is {}", layer, num_layers - 1));
    return;
  }
  num_announced_ += static_cast<int64_t>(layers.size());
  if (gathered_ != nullptr) return gathered_->Expect(layers);
  swapper_->Expect(layers);
}

absl::StatusOr<WeightsLease> LayerSession::Acquire(int layer) {
  FOREBAY_RETURN_IF_ERROR(undo_failure_);
  FOREBAY_RETURN_IF_ERROR(std::exchange(announce_error_, absl::OkStatus()));
  FOREBAY_RETURN_IF_ERROR(CheckIsNotUpdated(layer));
  LayerWeights weights = {.dtype = WeightDType(store_->tiles().layout())};
  FOREBAY_ASSIGN_OR_RETURN(weights.data, AcquireWhole(layer));
  if (gathered_ == nullptr) weights.pieces = swapper_->PiecesOf(layer);
  --num_announced_;
  lent_.push_back(layer);
  return WeightsLease(this, layer, weights, shared_from_this());
}

absl::Status LayerSession::CheckIsNotUpdated(int layer) const {
  FOREBAY_RETURN_IF_ERROR(CheckLayer(layer));
  const bool is_handed = is_handed_[static_cast<size_t>(layer)] != 0;
  if (!is_handed || !optimizer_->modes().DelayedUpdateIsPending()) return absl::OkStatus();
  return UsageError(fmt::format(
      "Acquire: the gradient of '{}' was handed over, and with that the update of the step "
      "before is applied to it. Read it before, or plan without delay_update_from",
      store_->inventory().layers()[layer].name));
}

absl::StatusOr<std::span<const std::byte>> LayerSession::AcquireWhole(int layer) {
  if (gathered_ == nullptr) return swapper_->Acquire(layer);
  const Stopwatch watch;
  const TraceScope trace(Activity::kRanks);
  const absl::StatusOr<std::span<const std::byte>> data = gathered_->Acquire(layer);
  own_waits_[Activity::kRanks] += watch.Seconds();
  return data;
}

void LayerSession::Release(int layer, Event* done) {
  lent_.erase(std::ranges::find(lent_, layer));
  if (gathered_ != nullptr) return gathered_->Release(layer, done);
  swapper_->Release(layer, done);
}

void LayerSession::CancelAnnounced() {
  if (gathered_ != nullptr) gathered_->CancelExpected();
  swapper_->CancelExpected();
  num_announced_ = 0;
  announce_error_ = absl::OkStatus();
}

absl::Status LayerSession::ShowNewest() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "ShowNewest"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("ShowNewest"));
  if (optimizer_->modes().DelayedUpdateIsPending()) {
    return UsageError("ShowNewest: the update of the last step goes on. Commit it before");
  }
  if (gathered_ != nullptr) gathered_->Forget();
  return absl::OkStatus();
}

// ---- Raw tensors -------------------------------------------------------------------------------

absl::StatusOr<std::span<std::byte>> LayerSession::RawTensor(int tensor) {
  const std::vector<TensorSpec>& tensors = store_->inventory().tensors();
  if (tensor < 0 || tensor >= static_cast<int>(tensors.size())) {
    return UsageError(fmt::format("RawTensor: there is no tensor {}; the last is {}", tensor,
                                  tensors.size() - 1));
  }
  if (!tensors[tensor].raw) {
    return UsageError(fmt::format("RawTensor: '{}' is not a raw tensor", tensors[tensor].name));
  }
  return raw_->Of(tensors[tensor]);
}

// ---- A step ------------------------------------------------------------------------------------

absl::Status LayerSession::BeginStep(StepUpdate update) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "BeginStep"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("BeginStep"));
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (!update.scalars_of) return UsageError("BeginStep: scalars_of is empty");
  FOREBAY_RETURN_IF_ERROR(CheckRawTensors("BeginStep"));
  if (!std::exchange(has_begun_, true)) since_commit_.Restart();
  step_watch_.Restart();
  waited_in_step_s_ = 0;
  if (is_abandoned_) FOREBAY_RETURN_IF_ERROR(FinishDelayed());
  is_abandoned_ = false;
  if (gathered_ != nullptr) gathered_->Forget();
  if (!update.groups.empty()) {
    FOREBAY_RETURN_IF_ERROR(optimizer_->SetGroups(update.groups));
    groups_ = std::move(update.groups);
  }
  update_ = std::move(update);
  scalars_ = update_.scalars_of(0);
  most_norm_ = update_.most_unclipped_norm;
  is_settled_ = is_repeated_ = false;
  ForgetHanded();
  if (optimizer_->modes().speculates() && hopes_) optimizer_->modes().ExpectSpeculation();
  state_ = State::kPass;
  return absl::OkStatus();
}

absl::Status LayerSession::SetGroups(std::vector<ParameterGroup> groups) {
  if (state_ != State::kDone) FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "SetGroups"));
  if (optimizer_->modes().speculates()) {
    return UsageError("SetGroups: updates with the settings of BeginStep may be applied already");
  }
  FOREBAY_RETURN_IF_ERROR(optimizer_->SetGroups(groups));
  groups_ = std::move(groups);
  return absl::OkStatus();
}

absl::Status LayerSession::RefreshScalars() {
  if (state_ != State::kDone) return absl::OkStatus();
  if (optimizer_->modes().speculates()) {
    return UsageError("RefreshScalars: updates with others are applied already");
  }
  scalars_ = update_.scalars_of(gradients_.norm);
  return absl::OkStatus();
}

void LayerSession::ForgetHanded() {
  open_layers_->Clear();
  std::ranges::fill(is_handed_, 0);
  num_handed_ = 0;
}

absl::Status LayerSession::UpdatesOfTheStepBefore() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "UpdatesOfTheStepBefore"));
  if (is_settled_) return absl::OkStatus();
  if (gathered_ != nullptr) gathered_->Settle();
  // One that is pending is applied as the gradients of this step are handed over.
  if (!optimizer_->modes().DelayedUpdateIsPending()) {
    FOREBAY_RETURN_IF_ERROR(ApplyUpdatesOfTheStepBefore());
  }
  if (optimizer_->modes().speculates() && (hopes_ || is_repeated_)) {
    if (update_is_open_) {
      return UsageError(fmt::format(
          "the gradients of step {}: the update of the step before is not committed, and those of "
          "this one, applied as they come, would be written over it. Commit each step before the "
          "next",
          released_step_ + 1));
    }
    FOREBAY_RETURN_IF_ERROR(BeginWriting());
    FOREBAY_RETURN_IF_ERROR(optimizer_->modes().BeginSpeculation(scalars_, most_norm_));
  }
  is_settled_ = true;
  return absl::OkStatus();
}

absl::Status LayerSession::ApplyUpdatesOfTheStepBefore() {
  if (optimizer_->AnyUpdateIsDue()) {
    FOREBAY_RETURN_IF_ERROR(CheckNothingIsLent("UpdatesOfTheStepBefore"));
    FOREBAY_RETURN_IF_ERROR(MakeOpenUpdateWrite());
    FOREBAY_RETURN_IF_ERROR(swapper_->ApplyAllUpdates());
  }
  if (!update_is_open_ || !open_update_commits_) return absl::OkStatus();
  if (open_update_defers_) return FinishAndCommit();
  FOREBAY_RETURN_IF_ERROR(optimizer_->AwaitAllWrites());
  return CommitReleased();
}

// Each rank in turn goes on with the sums where the one before has ended: they are those of whole
// layers, block by block, to the bit.
absl::Status LayerSession::SumOverParts(std::span<double> sums, absl::FunctionRef<void()> add_own) {
  const Stopwatch watch;
  const TraceScope trace(Activity::kRanks);
  absl::Status status;
  for (int rank = 0; rank < options_.ranks->size() && status.ok(); ++rank) {
    if (rank == options_.ranks->rank()) add_own();
    status = options_.ranks->Broadcast(std::as_writable_bytes(sums), rank);
  }
  own_waits_[Activity::kRanks] += watch.Seconds();
  return status;
}

absl::StatusOr<StepGradients> LayerSession::FinishBackward() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kPass, "FinishBackward"));
  FOREBAY_RETURN_IF_ERROR(CheckNoPartIsMissing("FinishBackward"));
  if (optimizer_->modes().DelayedUpdateIsPending()) {
    FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("FinishBackward"));
  }
  FOREBAY_RETURN_IF_ERROR(CloseLayers());
  FOREBAY_RETURN_IF_ERROR(HandSum());
  FOREBAY_ASSIGN_OR_RETURN(const GradientStats stats, optimizer_->FinishBackward());
  FOREBAY_RETURN_IF_ERROR(FinishDelayed());
  const double first_norm = gradients_.norm;
  gradients_ = {.norm = stats.norm, .first_nonfinite_layer = stats.first_nonfinite_layer};
  const UpdateScalars needed = update_.scalars_of(stats.norm);
  if (is_repeated_ && stats.norm != first_norm) {
    return absl::InternalError(fmt::format(
        "a step that was computed twice has the gradient norm {}, and had {}: nothing of it is "
        "applied. Resume, and report this; --gradients=hold does without",
        stats.norm, first_norm));
  }
  if (optimizer_->modes().speculates() && stats.first_nonfinite_layer < 0 && !is_repeated_) {
    hopes_ = needed.gradient_scale == scalars_.gradient_scale;
    gradients_.must_repeat = !hopes_ || !optimizer_->modes().SpeculationIsComplete();
    // One whose part alone was too large may have given up where the others did not.
    if (options_.parts != nullptr) {
      FOREBAY_ASSIGN_OR_RETURN(gradients_.must_repeat,
                               AnyRank(options_.ranks, gradients_.must_repeat));
    }
  }
  scalars_ = needed;
  state_ = gradients_.must_repeat ? State::kMustRepeat : State::kDone;
  return gradients_;
}

absl::Status LayerSession::BeginRepeat() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kMustRepeat, "BeginRepeat"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("BeginRepeat"));
  failure_.Update(AbandonGradients());
  FOREBAY_RETURN_IF_ERROR(failure_);
  raw_->Abandon();
  most_norm_ = std::numeric_limits<double>::infinity();
  is_settled_ = false;
  is_repeated_ = true;
  ForgetHanded();
  state_ = State::kPass;
  return absl::OkStatus();
}

// ---- How it stands -----------------------------------------------------------------------------

ActivityTimes LayerSession::waits() const {
  ActivityTimes waits = own_waits_;
  // Where layers are gathered, nobody but the communicator waits for the window.
  if (gathered_ == nullptr) waits += swapper_->stats().waits;
  waits[Activity::kHandOver] += optimizer_->stats().hand_wait_s;
  if (activations_ != nullptr) waits[Activity::kActivations] += activations_->wait_s();
  return waits;
}

double LayerSession::update_s() const {
  return optimizer_->stats().update_s;
}

bool LayerSession::speculates() const {
  return optimizer_->modes().speculates();
}

}  // namespace forebay
