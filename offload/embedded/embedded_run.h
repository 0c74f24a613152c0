// A LayerSession with all that it runs with: plan, engine, memory budget and store. For programs
// that bring a model, data and a loop of their own, in C++ or through capi/.
//
//   Plan                                what will lie where; no disk is touched
//   BeginCreate, Fill, Start            a new store
//   CreateFrom                          or one with the state of another
//   Open                                or one that is there
//   session()                           the steps
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "forebay/aio/open_engine.h"
#include "forebay/collective/communicator.h"
#include "forebay/offload/create_store.h"
#include "forebay/offload/divided_state.h"
#include "forebay/offload/embedded/embedded_ranks.h"
#include "forebay/offload/layer_session.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

struct EmbeddedOptions {
  // `nvme`: the store's own folders, at least one; made where they are not there. With several
  // ranks the folders in which each has its own (FoldersOfRank). `ram_bytes`: all that forebay may
  // take in this process.
  OffloadOptions offload;
  PassKind pass = PassKind::kModule;
  bool commits_on_demand = false;    // LayerSession::Commit and CommitWhen::kNow alone commit
  int threads = 0;                   // 0: as many as there are cores
  int num_open_layers = 2;           // as LayerSessionOptions has it
  ParameterGroups groups;            // empty: those of OffloadOptions
  Device* device = nullptr;          // layers are copied to it; nullptr: not. Outlives the run
  int64_t device_staging_bytes = 0;  // of RAM, for gradients that the caller copies from it
  // Those that train together, each with data of its own; nullptr, or one alone: this process. Its
  // contract holds: every rank makes the same calls of the run and its session in the same order,
  // but for those that say otherwise. Outlives the run.
  Communicator* ranks = nullptr;
  // As ZeRO has it: 0: each rank has the whole state. 1 to 3: each has its part, and layers are
  // gathered once in a step (1 and 2), or for each use (3).
  int zero_stage = 0;
};

// Used by one thread at a time, but for Stop. Leases of its session end before it.
class EmbeddedRun {
 public:
  // UsageError, DoesNotFitError with the least ram_bytes that works.
  static absl::StatusOr<std::unique_ptr<EmbeddedRun>> Plan(EmbeddedOptions options,
                                                           Inventory inventory);

  const OffloadPlan& plan() const { return plan_; }
  const Inventory& inventory() const { return inventory_; }  // of all ranks together
  int num_ranks() const { return options_.ranks == nullptr ? 1 : options_.ranks->size(); }
  CollectiveTraffic traffic() const {  // between the ranks, of all their runs
    return options_.ranks == nullptr ? CollectiveTraffic() : options_.ranks->traffic();
  }
  bool is_divided() const { return parts_ != nullptr; }  // each rank has a part of the state
  // Tells the other ranks that this one cannot go on.
  void Abort(const absl::Status& why);
  // The engine in words, once it was opened.
  const std::string& engine_line() const { return engine_.line; }
  MemoryBudget& budget() { return *budget_; }

  // Whether a store lies in the folders, whole or damaged: of every rank, if there are several. One
  // that is half made (StoreState) counts as none, and BeginCreate removes it. StorageError if that
  // cannot be known, which the next Open gives too; the errors of AgreeOnCreation.
  absl::StatusOr<bool> Exists();
  // Removes a store that is at step 0, for one with other weights; OK if there is none. Of ranks
  // all make this call. UsageError: it has made steps, or is open; nothing is removed then.
  // StorageError, CorruptError, EnvironmentError.
  absl::Status RemoveUnused();
  // Makes a store, to be filled. The errors of TensorStore::Create.
  absl::Status BeginCreate();
  bool IsFilling() const { return filler_ != nullptr; }
  // Fills a tensor (by its index) in the order that StoreFiller asks for: values_of(first, values)
  // gives the elements from `first` on. With several ranks each gets those of rank 0, which alone
  // is asked. Requires: IsFilling, and it is not raw.
  using ValuesOf = absl::FunctionRef<void(int64_t first, std::span<float> values)>;
  absl::Status Fill(int tensor, ValuesOf values_of);
  // Where the bytes of a raw tensor go, until the next call; each rank has its own. Requires:
  // IsFilling.
  absl::StatusOr<std::span<std::byte>> BytesToFill(int tensor) { return filler_->BytesOf(tensor); }
  // Ends the filling, and commits step 0 with `user`, an object.
  absl::Status Start(Json user);
  // In place of BeginCreate, filling and Start: makes a store with the state that lies in
  // `folders`, at its step and with its words, to the bit. It may have been made by another number
  // of ranks, or by one process, and with another zero_stage: each rank copies its part out of the
  // folders of all, which stay as they are. Raw tensors are those of the same rank, or the first.
  // BadInputError: there is no store. CorruptError: those of its ranks are of different steps, or
  // of different runs. UsageError: it is of another inventory, or of other options.
  absl::Status CreateFrom(const std::vector<std::string>& folders);
  // Opens the newest committed step, and applies the gradients that a crash has left.
  // BadInputError: there is no store. CorruptError: it is damaged. UsageError: it is of another
  // inventory or of other options.
  absl::Status Open();
  // Has the call of BeginCreate, filling, Start or Open that is under way, or else the next, end
  // soon with InterruptedError. Any thread.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }

  // nullptr before Start and Open.
  LayerSession* session() { return session_.get(); }
  // Elements of what is committed of a whole tensor (by its index). Where each rank has a part,
  // every rank makes the call. Requires: there is a session, and a plane of that kind.
  absl::Status ReadTensor(int tensor, TensorPlane plane, int64_t first, std::span<float> values);

 private:
  EmbeddedRun(EmbeddedOptions options, Inventory inventory)
      : options_(std::move(options)), inventory_(std::move(inventory)) {}
  absl::Status TakePartOfRank();
  const Inventory& own_inventory() const { return parts_ == nullptr ? inventory_ : own_; }
  absl::StatusOr<bool> FindStore();
  absl::StatusOr<StoreStanding> StandingOfStore();
  // The same of all ranks; `own`: whether this one can go on.
  absl::Status AllCan(const absl::Status& own) const;
  absl::Status AgreeOnOptions() const;
  absl::Status AgreeOnStore(TensorStore& store);
  absl::Status AgreeOnPlan() const;
  std::vector<PlanTerm> RankTerms() const;
  GatheredWeightsOptions Gathering() const;
  absl::Status MakePlan(const MachineLimits& limits, bool store_exists);
  bool TakeStop() { return stopped_.exchange(false, std::memory_order_relaxed); }
  absl::Status OpenIo();
  absl::Status CheckCanBegin(std::string_view call) const;
  absl::Status FinishCreation(const absl::StatusOr<std::unique_ptr<TensorStore>>& own);
  absl::StatusOr<std::unique_ptr<TensorStore>> OpenStore();
  absl::Status CheckStoreIsOurs(const TensorStore& store) const;
  absl::Status CheckStoreHas(const TensorStore& store, const Inventory& expected) const;
  static bool HasTensorsOf(const TensorStore& store, const Inventory& inventory);
  struct StateToCopy {
    std::unique_ptr<Engine> engine;  // before what uses it
    std::unique_ptr<DividedState> state;
    int part_of_raw = 0;  // whose raw tensors this rank takes
  };
  absl::StatusOr<StateToCopy> OpenStateToCopy(const std::vector<std::string>& folders) const;
  absl::StatusOr<std::unique_ptr<TensorStore>> FinishCopy(const StateToCopy& from);
  absl::Status Begin(std::unique_ptr<TensorStore> store);

  EmbeddedOptions options_;
  const Inventory inventory_;
  std::shared_ptr<const InventoryParts> parts_;  // nullptr: each rank has the whole state
  Inventory own_;                                // this rank's part of it
  OffloadPlan plan_;
  std::atomic<bool> stopped_{false};
  absl::Status why_unclear_;  // the error of the last Exists
  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<MemoryBudget> budget_;
  OpenedEngine engine_;
  std::unique_ptr<StoreFiller> filler_;
  std::shared_ptr<LayerSession> session_;
};

}  // namespace forebay
