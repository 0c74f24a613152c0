#include "forebay/offload/embedded/embedded_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/offload/ask_machine.h"
#include "forebay/offload/ranks/agreement.h"
#include "forebay/offload/ranks/read_parts.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/swap/store/store_state.h"

namespace forebay {
namespace {

std::string ShapeText(const TensorSpec& tensor) {
  return fmt::format("'{}' {}", tensor.name, ToString(tensor.shape));
}

// The first tensor that a store does not have as `wanted` says; "": all are alike.
std::string FirstDifference(const Inventory& wanted, const Inventory& stored) {
  const std::vector<TensorSpec>& ours = wanted.tensors();
  const std::vector<TensorSpec>& theirs = stored.tensors();
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i].name == theirs[i].name && ours[i].shape == theirs[i].shape &&
        ours[i].layer == theirs[i].layer && ours[i].raw == theirs[i].raw) {
      continue;
    }
    return fmt::format("tensor {} is {} in layer {}, and {} in layer {} in the store", i,
                       ShapeText(ours[i]), ours[i].layer, ShapeText(theirs[i]), theirs[i].layer);
  }
  if (ours.size() == theirs.size()) return "";
  return fmt::format("there are {} tensors, and {} in the store", ours.size(), theirs.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedRun>> EmbeddedRun::Plan(EmbeddedOptions options,
                                                               Inventory inventory) {
  if (options.offload.nvme.empty()) {
    return UsageError("no folder is named for the store. Name at least one");
  }
  std::unique_ptr<EmbeddedRun> run(new EmbeddedRun(std::move(options), std::move(inventory)));
  FOREBAY_RETURN_IF_ERROR(run->TakePartOfRank());
  MachineLimits limits = LimitsOfMachine(run->options_.offload.nvme);
  if (Communicator* const ranks = run->options_.ranks; ranks != nullptr) {
    limits.available_memory_bytes /= ranks->num_ranks_here();
    limits.num_cores = std::max(1, limits.num_cores / ranks->num_ranks_here());
  }
  const std::vector<double>& shares = run->options_.offload.nvme_weights;
  if (!shares.empty()) {
    if (shares.size() != limits.disks.size() ||
        !std::ranges::all_of(shares, [](double share) { return share > 0 && share < 1e9; })) {
      return UsageError(
          fmt::format("{} folders have the shares {}. Give each one a number above 0, below 1e9",
                      limits.disks.size(), fmt::join(shares, ", ")));
    }
    const StripeWeights weights = WeightsInProportion(shares);
    for (size_t i = 0; i < weights.size(); ++i) limits.disks[i].weight = weights[i];
  }
  if (run->options_.threads == 0) run->options_.threads = limits.num_cores;
  FOREBAY_ASSIGN_OR_RETURN(const StoreState state, LookForStore(run->options_.offload.nvme));
  FOREBAY_RETURN_IF_ERROR(run->MakePlan(limits, HasCommit(state)));
  return run;
}

// Takes this rank's part of what is given for all.
absl::Status EmbeddedRun::TakePartOfRank() {
  if (options_.ranks != nullptr && options_.ranks->size() == 1) options_.ranks = nullptr;
  std::vector<std::string>& folders = options_.offload.nvme;
  FOREBAY_ASSIGN_OR_RETURN(folders, AbsolutePaths(folders));  // which outlive a chdir
  FOREBAY_RETURN_IF_ERROR(CheckStoresAreOf(folders, num_ranks()));
  if (options_.zero_stage < 0 || options_.zero_stage > 3) {
    return UsageError(
        fmt::format("zero_stage is {}, and has to be from 0 to 3", options_.zero_stage));
  }
  if (options_.ranks == nullptr) return absl::OkStatus();
  const int rank = options_.ranks->rank();
  folders = FoldersOfRank(folders, rank, num_ranks());
  if (options_.zero_stage == 0) return absl::OkStatus();
  parts_ = std::make_shared<const InventoryParts>(inventory_, num_ranks());
  own_ = parts_->Of(rank);
  return absl::OkStatus();
}

void EmbeddedRun::Abort(const absl::Status& why) {
  if (options_.ranks != nullptr) options_.ranks->Abort(why);
}

// Memory that only ranks need.
std::vector<PlanTerm> EmbeddedRun::RankTerms() const {
  if (options_.ranks == nullptr) return {};
  std::vector<PlanTerm> terms = {
      {"sum of gradients over ranks (fp32)",
       GradientSum::ChargedBytes(inventory_, num_ranks(), options_.offload.reduce_bucket_bytes), 0,
       "reduce_bucket_bytes"}};
  if (parts_ == nullptr) return terms;
  const DType weights = WeightDType(options_.offload.layout);
  terms.push_back({"weights of all ranks",
                   GatheredWeights::ChargedBytes(inventory_, weights, Gathering()), 0,
                   Gathering().length == GatheredFor::kUse ? "num_window_layers" : "zero_stage=3"});
  terms.push_back({"sums of squares of gradients", HeldGradients::SumsBytes(own_), 0, ""});
  return terms;
}

GatheredWeightsOptions EmbeddedRun::Gathering() const {
  GatheredWeightsOptions gathering;
  // A step that is computed elsewhere reads each layer once anyway.
  const bool for_use = options_.zero_stage == 3 || options_.pass == PassKind::kUpdateOnly;
  gathering.length = for_use ? GatheredFor::kUse : GatheredFor::kStep;
  // As many as the window would have, of which one is gathered while the others are held.
  const StepBuffers buffers = options_.offload.buffers.value_or(StepBuffers{});
  gathering.most_held = std::max(2, buffers.num_block_buffers - 1);
  gathering.device = options_.device;
  return gathering;
}

absl::Status EmbeddedRun::MakePlan(const MachineLimits& limits, bool store_exists) {
  PlanInputs inputs;
  inputs.inventory = own_inventory();
  inputs.pass = options_.pass;
  inputs.program_bytes = 0;
  inputs.store_exists = store_exists;
  inputs.step_memory = {{"gradients of open layers (fp32)",
                         LayerSession::OpenLayerBytes(inventory_, options_.num_open_layers), 0,
                         "num_open_layers"}};
  for (PlanTerm& term : RankTerms()) inputs.step_memory.push_back(std::move(term));
  if (options_.device_staging_bytes > 0) {
    inputs.step_memory.push_back({"a gradient on its way from the GPU (fp32)",
                                  HostBuffer::ChargedBytes(options_.device_staging_bytes), 0, ""});
  }
  FOREBAY_ASSIGN_OR_RETURN(plan_, MakeOffloadPlan(inputs, options_.offload, limits));
  plan_.commit_pace.only_on_demand |= options_.commits_on_demand;
  budget_ = std::make_unique<MemoryBudget>(plan_.ram_budget_bytes);
  return absl::OkStatus();
}

absl::StatusOr<StoreStanding> EmbeddedRun::StandingOfStore() {
  FOREBAY_ASSIGN_OR_RETURN(const StoreState state, LookForStore(options_.offload.nvme));
  if (!HasCommit(state)) return StoreStanding{};
  FOREBAY_RETURN_IF_ERROR(OpenIo());
  // To read: who opens it to write ends its creation.
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorStore> store,
      TensorStore::Open(options_.offload.nvme, engine_.engine.get(), "", StoreAccess::kReadOnly));
  return StoreStanding{.is_there = true,
                       .step = store->committed().step,
                       .is_unfinished = state == StoreState::kUnfinished};
}

absl::StatusOr<bool> EmbeddedRun::Exists() {
  absl::StatusOr<bool> exists = FindStore();
  why_unclear_ = exists.status();
  return exists;
}

absl::StatusOr<bool> EmbeddedRun::FindStore() {
  if (options_.ranks == nullptr || session_ != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(const StoreState state, LookForStore(options_.offload.nvme));
    return HasCommit(state);
  }
  FOREBAY_RETURN_IF_ERROR(AgreeOnOptions());
  const absl::StatusOr<StoreStanding> own = StandingOfStore();
  FOREBAY_RETURN_IF_ERROR(AllCan(own.status()));
  bool is_left_over = false;
  FOREBAY_RETURN_IF_ERROR(AgreeOnCreation(*own, *options_.ranks, is_left_over));
  if (is_left_over) FOREBAY_RETURN_IF_ERROR(TensorStore::Remove(options_.offload.nvme).status());
  return own->is_there && !is_left_over;
}

absl::Status EmbeddedRun::RemoveUnused() {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("remove"));
  const auto remove = [&]() -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(const StoreStanding own, StandingOfStore());
    if (!own.is_there) return absl::OkStatus();
    if (own.step == 0) return TensorStore::Remove(options_.offload.nvme).status();
    return UsageError(
        fmt::format("the store in '{}' has made {} steps, and only one without any is removed for "
                    "another. Remove its folder if nothing of it is needed, or name another folder",
                    fmt::join(options_.offload.nvme, "', '"), own.step));
  };
  return AllCan(remove());
}

absl::Status EmbeddedRun::CheckCanBegin(std::string_view call) const {
  if (session_ == nullptr && filler_ == nullptr) return absl::OkStatus();
  return UsageError(fmt::format("{}: there is a store already, {}", call,
                                session_ != nullptr ? "and it is open" : "and it is being filled"));
}

absl::Status EmbeddedRun::OpenIo() {
  if (engine_.engine != nullptr) return absl::OkStatus();
  const EngineOptions options = {.engine = options_.offload.engine,
                                 .strict = options_.offload.engine_strict,
                                 .num_threads = options_.offload.io_threads};
  FOREBAY_ASSIGN_OR_RETURN(engine_, OpenEngine(options, options_.offload.nvme));
  return absl::OkStatus();
}

absl::Status EmbeddedRun::AllCan(const absl::Status& own) const {
  return options_.ranks == nullptr ? own : AgreeThatAllCan(own, *options_.ranks);
}

absl::Status EmbeddedRun::BeginCreate() {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("create"));
  if (TakeStop()) return InterruptedError("stopped on request");
  FOREBAY_RETURN_IF_ERROR(AgreeOnOptions());
  FOREBAY_RETURN_IF_ERROR(AllCan(OpenIo()));
  StoreOptions store = StoreOptionsOf(plan_, options_.offload.nvme);
  if (options_.ranks != nullptr) {
    FOREBAY_RETURN_IF_ERROR(FindStore().status());
    FOREBAY_RETURN_IF_ERROR(AgreeOnPlan());
    store.finished_by_owner = true;
    // Stores that belong together have one number.
    FOREBAY_ASSIGN_OR_RETURN(store.uuid, NewStoreUuid());
    FOREBAY_RETURN_IF_ERROR(
        options_.ranks->Broadcast(std::as_writable_bytes(std::span(*store.uuid)), 0));
  }
  absl::StatusOr<std::unique_ptr<StoreFiller>> filler = StoreFiller::Create(
      store, own_inventory(), engine_.engine.get(), budget_.get(), [this] { return TakeStop(); });
  FOREBAY_RETURN_IF_ERROR(AllCan(filler.status()));
  filler_ = *std::move(filler);
  return absl::OkStatus();
}

absl::Status EmbeddedRun::Fill(int tensor, ValuesOf values_of) {
  FOREBAY_ASSIGN_OR_RETURN(const std::span<float> own, filler_->ValuesOf(tensor));
  Communicator* const ranks = options_.ranks;
  if (ranks == nullptr) {
    values_of(0, own);
    return absl::OkStatus();
  }
  constexpr int64_t kPieceElems = int64_t{1} << 16;
  const int64_t num_elems = inventory_.tensors()[tensor].num_elems;
  const int64_t own_first = parts_ == nullptr ? 0 : parts_->FirstElem(tensor, ranks->rank());
  std::vector<float> values(static_cast<size_t>(std::min(num_elems, kPieceElems)));
  for (int64_t first = 0; first < num_elems; first += kPieceElems) {
    const auto piece = std::span(values).first(std::min(kPieceElems, num_elems - first));
    if (ranks->rank() == 0) values_of(first, piece);
    FOREBAY_RETURN_IF_ERROR(ranks->Broadcast(std::as_writable_bytes(piece), 0));
    const int64_t begin = std::max(first, own_first);
    const int64_t end = std::min(first + std::ssize(piece), own_first + std::ssize(own));
    if (begin >= end) continue;
    std::ranges::copy(piece.subspan(begin - first, end - begin), own.begin() + begin - own_first);
  }
  return absl::OkStatus();
}

absl::Status EmbeddedRun::Start(Json user) {
  if (filler_ == nullptr) return UsageError("start: no store is being filled. Create one before");
  CommitInfo first;
  first.trainer = std::move(user);
  absl::StatusOr<std::unique_ptr<TensorStore>> store = filler_->Finish(first);
  filler_.reset();
  FOREBAY_RETURN_IF_ERROR(FinishCreation(store));
  return Begin(*std::move(store));
}

// Only from then on every rank keeps its store: AgreeOnCreation removes those of a creation that
// was cut off.
absl::Status EmbeddedRun::FinishCreation(const absl::StatusOr<std::unique_ptr<TensorStore>>& own) {
  FOREBAY_RETURN_IF_ERROR(AllCan(own.status()));
  return options_.ranks == nullptr ? absl::OkStatus() : (*own)->FinishCreation();
}

// The store decides. Options that ask for another kind of store are an error.
absl::Status EmbeddedRun::CheckStoreIsOurs(const TensorStore& store) const {
  if (parts_ != nullptr && HasTensorsOf(store, inventory_)) {
    return UsageError(
        fmt::format("the store in '{}' was made with zero_stage 0, and {} is asked for, which "
                    "divides the state. Take that of the store, or name another folder",
                    store.directory(), options_.zero_stage));
  }
  return CheckStoreHas(store, own_inventory());
}

bool EmbeddedRun::HasTensorsOf(const TensorStore& store, const Inventory& inventory) {
  return FirstDifference(inventory, store.inventory()).empty();
}

absl::Status EmbeddedRun::CheckStoreHas(const TensorStore& store, const Inventory& expected) const {
  const std::string difference = FirstDifference(expected, store.inventory());
  if (!difference.empty()) {
    return UsageError(fmt::format(
        "the store in '{}' is of another model: {}. Give it the model that it was made with, or "
        "name another folder",
        store.directory(), difference));
  }
  if (store.tiles().layout() != options_.offload.layout) {
    return UsageError(fmt::format(
        "the store in '{}' has weights of {}, and {} are asked for. Give the model that type, or "
        "name another folder",
        store.directory(), NameOf(WeightDType(store.tiles().layout())),
        NameOf(WeightDType(options_.offload.layout))));
  }
  if (store.tiles().moment_set() != MomentsOf(RuleOf(options_.offload))) {
    return UsageError(
        fmt::format("the store in '{}' was made with another optimizer, which keeps other moments "
                    "than {}. Name another folder, or take that optimizer",
                    store.directory(), NameOf(options_.offload.optimizer)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorStore>> EmbeddedRun::OpenStore() {
  FOREBAY_RETURN_IF_ERROR(OpenIo());
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Open(options_.offload.nvme, engine_.engine.get()));
  FOREBAY_RETURN_IF_ERROR(CheckStoreIsOurs(*store));
  return store;
}

absl::Status EmbeddedRun::Open() {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("open"));
  if (TakeStop()) return InterruptedError("stopped on request");
  if (!why_unclear_.ok()) return std::exchange(why_unclear_, absl::OkStatus());
  FOREBAY_ASSIGN_OR_RETURN(const bool exists, FindStore());
  if (!exists) {
    return BadInputError(
        fmt::format("there is no store in '{}'", fmt::join(options_.offload.nvme, "', '")));
  }
  absl::StatusOr<std::unique_ptr<TensorStore>> opened = OpenStore();
  FOREBAY_RETURN_IF_ERROR(AllCan(opened.status()));
  std::unique_ptr<TensorStore> store = *std::move(opened);
  FOREBAY_RETURN_IF_ERROR(AgreeOnStore(*store));
  // Tiles, shares and copies are made once.
  options_.offload.nvme = store->directories();
  options_.offload.tile_elems = store->tiles().tile_elems();
  Durability& durability = options_.offload.durability;
  if (store->num_slots() == 1) {
    durability = Durability::kNone;
  } else if (durability == Durability::kNone) {
    durability = Durability::kStep;
  }
  MachineLimits limits = LimitsOfMachine(options_.offload.nvme);
  limits.num_cores = options_.threads;
  for (size_t i = 0; i < limits.disks.size(); ++i) {
    limits.disks[i].weight = store->tiles().stripe_weights()[i];
  }
  FOREBAY_RETURN_IF_ERROR(MakePlan(limits, /*store_exists=*/true));
  return Begin(std::move(store));
}

// Brings it to the step that the stores of all ranks have.
absl::Status EmbeddedRun::AgreeOnStore(TensorStore& store) {
  if (options_.ranks == nullptr) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(AgreeOnSettings(
      {{"the store (they do not belong together)", ToHex(store.uuid())}}, *options_.ranks));
  FOREBAY_ASSIGN_OR_RETURN(const NewestCommit newest, FindNewestCommit(store, *options_.ranks));
  return BringToStep(newest.standing, newest.trainer, store);
}

// Before anything is made or opened.
absl::Status EmbeddedRun::AgreeOnOptions() const {
  if (options_.ranks == nullptr) return absl::OkStatus();
  const auto tensors = [this] {
    const std::vector<int>& groups = options_.groups.of_tensor;
    std::vector<std::string> texts;
    for (const TensorSpec& tensor : inventory_.tensors()) {
      const size_t i = texts.size();
      texts.push_back(fmt::format(
          "'{}' {} in layer {} and group {}{}", tensor.name, ToString(tensor.shape), tensor.layer,
          i < groups.size() ? groups[i] : 0, tensor.raw ? " of raw bytes" : ""));
    }
    return texts;
  };
  Xxh3_128 model;
  for (const std::string& tensor : tensors()) model.Update(tensor + "\n");
  const OffloadOptions& offload = options_.offload;
  return AgreeOnSettings(
      {{.name = "the model (names, shapes and groups of its tensors)",
        .value = model.Hex(),
        .shown = fmt::format("of {} tensors", inventory_.tensors().size()),
        .parts = tensors},
       {"zero_stage", options_.zero_stage},
       {"reduce_bucket_bytes", options_.offload.reduce_bucket_bytes},
       {"reduce_dtype", NameOf(options_.offload.reduce_dtype)},
       {"weights", NameOf(WeightDType(offload.layout))},
       {"gradients that wait", NameOf(offload.grad_dtype)},
       {"optimizer", NameOf(offload.optimizer)},
       {"nesterov", offload.nesterov},
       {"pass", options_.pass == PassKind::kModule ? "forward_backward" : "update_only"},
       {"num_open_layers", options_.num_open_layers},
       {"num_window_layers", Gathering().most_held},
       {"device", options_.device == nullptr ? "cpu" : "cuda"}},
      *options_.ranks);
}

// As it is without a store, and as the store has made it.
absl::Status EmbeddedRun::AgreeOnPlan() const {
  if (options_.ranks == nullptr) return absl::OkStatus();
  return AgreeOnSettings(
      {{"copies of the state (durability)", plan_.num_slots},
       {"when each layer is updated (update_in_backward)", UpdateTimesOf(plan_.placement)}},
      *options_.ranks);
}

absl::Status EmbeddedRun::ReadTensor(int tensor, TensorPlane plane, int64_t first,
                                     std::span<float> values) {
  TensorStore& store = session_->store();
  const TensorSpec& own = store.inventory().tensors()[tensor];
  if (parts_ == nullptr) return store.ReadTensor(own, plane, first, values);
  return ReadOfAllParts(*parts_, *options_.ranks, tensor, first, values,
                        [&](int64_t first_in_part, std::span<float> part) {
                          return store.ReadTensor(own, plane, first_in_part, part);
                        });
}

absl::Status EmbeddedRun::Begin(std::unique_ptr<TensorStore> store) {
  FOREBAY_RETURN_IF_ERROR(AgreeOnPlan());
  LayerSessionOptions session;
  session.offload = options_.offload;
  session.threads = options_.threads;
  session.num_disks = static_cast<int>(options_.offload.nvme.size());
  session.num_open_layers = options_.num_open_layers;
  session.device = options_.device;
  session.groups = options_.groups;
  session.ranks = options_.ranks;
  session.parts = parts_;
  session.gathered_for = Gathering().length;
  session.num_held_layers = Gathering().most_held;
  FOREBAY_ASSIGN_OR_RETURN(
      session_, LayerSession::Create(plan_, std::move(session), std::move(store), budget_.get()));
  return absl::OkStatus();
}

}  // namespace forebay
