#include "forebay/offload/embedded_run.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/offload/ask_machine.h"
#include "forebay/swap/store/store_folders.h"

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
  if (options.commits_on_demand && options.offload.durability == Durability::kReplay) {
    return UsageError(
        "gradients that are kept for a crash (replay) are those of the step after the committed "
        "one, so every step is committed. Leave out that commits are made when asked for alone");
  }
  std::unique_ptr<EmbeddedRun> run(new EmbeddedRun(std::move(options), std::move(inventory)));
  MachineLimits limits = LimitsOfMachine(run->options_.offload.nvme);
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
  FOREBAY_RETURN_IF_ERROR(run->MakePlan(limits, run->Exists()));
  return run;
}

absl::Status EmbeddedRun::MakePlan(const MachineLimits& limits, bool store_exists) {
  PlanInputs inputs;
  inputs.inventory = inventory_;
  inputs.pass = options_.pass;
  inputs.program_bytes = 0;
  inputs.store_exists = store_exists;
  inputs.step_memory = {{"gradients of open layers (fp32)",
                         LayerSession::OpenLayerBytes(inventory_, options_.num_open_layers), 0,
                         "num_open_layers"}};
  if (options_.device_staging_bytes > 0) {
    inputs.step_memory.push_back({"a gradient on its way from the GPU (fp32)",
                                  HostBuffer::ChargedBytes(options_.device_staging_bytes), 0, ""});
  }
  FOREBAY_ASSIGN_OR_RETURN(plan_, MakeOffloadPlan(inputs, options_.offload, limits));
  plan_.commit_pace.only_on_demand |= options_.commits_on_demand;
  budget_ = std::make_unique<MemoryBudget>(plan_.ram_budget_bytes);
  return absl::OkStatus();
}

// A commit file is zeros until the first commit.
bool EmbeddedRun::Exists() const {
  return std::ranges::any_of(options_.offload.nvme, [](const std::string& folder) {
    return std::ranges::any_of(kCommitNames, [&](const char* name) {
      std::ifstream file(JoinPath(folder, name), std::ios::binary);
      uint64_t magic = 0;
      file.read(reinterpret_cast<char*>(&magic), sizeof(magic));
      return file.good() && magic != 0;
    });
  });
}

// Removes the rest of a creation that was killed.
absl::Status EmbeddedRun::RemoveHalfMade() const {
  const bool has_manifest = std::ranges::any_of(
      options_.offload.nvme,
      [](const std::string& folder) { return FileExists(JoinPath(folder, kManifestName)); });
  if (!has_manifest || Exists()) return absl::OkStatus();
  return TensorStore::Remove(options_.offload.nvme).status();
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

absl::Status EmbeddedRun::BeginCreate() {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("create"));
  if (TakeStop()) return InterruptedError("stopped on request");
  FOREBAY_RETURN_IF_ERROR(RemoveHalfMade());
  FOREBAY_RETURN_IF_ERROR(OpenIo());
  FOREBAY_ASSIGN_OR_RETURN(
      filler_,
      StoreFiller::Create(StoreOptionsOf(plan_, options_.offload.nvme), inventory_,
                          engine_.engine.get(), budget_.get(), [this] { return TakeStop(); }));
  return absl::OkStatus();
}

absl::Status EmbeddedRun::Start(Json user) {
  if (filler_ == nullptr) return UsageError("start: no store is being filled. Create one before");
  CommitInfo first;
  first.trainer = std::move(user);
  absl::StatusOr<std::unique_ptr<TensorStore>> store = filler_->Finish(first);
  filler_.reset();
  FOREBAY_RETURN_IF_ERROR(store.status());
  return Begin(*std::move(store));
}

// The store decides. Options that ask for another kind of store are an error.
absl::Status EmbeddedRun::CheckStoreIsOurs(const TensorStore& store) const {
  const std::string difference = FirstDifference(inventory_, store.inventory());
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

absl::Status EmbeddedRun::Open() {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("open"));
  if (TakeStop()) return InterruptedError("stopped on request");
  if (!Exists()) {
    return BadInputError(
        fmt::format("there is no store in '{}'", fmt::join(options_.offload.nvme, "', '")));
  }
  FOREBAY_RETURN_IF_ERROR(OpenIo());
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Open(options_.offload.nvme, engine_.engine.get()));
  FOREBAY_RETURN_IF_ERROR(CheckStoreIsOurs(*store));
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
  FOREBAY_RETURN_IF_ERROR(Begin(std::move(store)));
  const absl::Status status = ApplyKeptGradients();
  if (!status.ok()) session_.reset();
  return status;
}

// Without them the committed step stands: damage costs no more than the step that a crash cut off.
absl::Status EmbeddedRun::ApplyKeptGradients() {
  const RecoveredUpdate recovered = session_->Recover([this](double) {
    return TakeStop() ? InterruptedError("stopped on request") : absl::OkStatus();
  });
  if (ExitCodeOf(recovered.damage) == ExitCode::kInterrupted) return recovered.damage;
  if (!recovered.damage.ok()) {
    note_ = fmt::format("the gradients that were kept of step {} are not used: {}",
                        session_->committed_step() + 1, MessageOf(recovered.damage));
  }
  return recovered.kept.has_value() ? session_->ApplyRecovered() : absl::OkStatus();
}

absl::Status EmbeddedRun::Begin(std::unique_ptr<TensorStore> store) {
  LayerSessionOptions session;
  session.offload = options_.offload;
  session.threads = options_.threads;
  session.num_disks = static_cast<int>(options_.offload.nvme.size());
  session.num_open_layers = options_.num_open_layers;
  session.device = options_.device;
  session.groups = options_.groups;
  FOREBAY_ASSIGN_OR_RETURN(
      session_, LayerSession::Create(plan_, std::move(session), std::move(store), budget_.get()));
  return absl::OkStatus();
}

}  // namespace forebay
