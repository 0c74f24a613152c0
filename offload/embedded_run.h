// A LayerSession with all that it runs with: plan, engine, memory budget and store. For programs
// that bring a model, data and a loop of their own, in C++ or through capi/.
//
//   Plan                                what will lie where; no disk is touched
//   BeginCreate, filler(), Start        a new store
//   Open                                or one that is there
//   session()                           the steps
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/open_engine.h"
#include "forebay/offload/create_store.h"
#include "forebay/offload/layer_session.h"

namespace forebay {

struct EmbeddedOptions {
  // `nvme`: the store's own folders, at least one; made where they are not there. `ram_bytes`: all
  // that forebay may take in this process.
  OffloadOptions offload;
  PassKind pass = PassKind::kModule;
  bool commits_on_demand = false;    // LayerSession::Commit and CommitWhen::kNow alone commit
  int threads = 0;                   // 0: as many as there are cores
  int num_open_layers = 2;           // as LayerSessionOptions has it
  ParameterGroups groups;            // empty: those of OffloadOptions
  Device* device = nullptr;          // layers are copied to it; nullptr: not. Outlives the run
  int64_t device_staging_bytes = 0;  // of RAM, for gradients that the caller copies from it
};

// Used by one thread at a time, but for Stop. Leases of its session end before it.
class EmbeddedRun {
 public:
  // UsageError, DoesNotFitError with the least ram_bytes that works.
  static absl::StatusOr<std::unique_ptr<EmbeddedRun>> Plan(EmbeddedOptions options,
                                                           Inventory inventory);

  const OffloadPlan& plan() const { return plan_; }
  const Inventory& inventory() const { return inventory_; }
  // The engine in words, once it was opened.
  const std::string& engine_line() const { return engine_.line; }
  // One line about what Open found and left out; "": nothing.
  const std::string& note() const { return note_; }
  MemoryBudget& budget() { return *budget_; }

  // Whether a store lies in the folders. One that is half made counts as none, and BeginCreate
  // removes it.
  bool Exists() const;
  // Makes a store, to be filled. The errors of TensorStore::Create.
  absl::Status BeginCreate();
  // nullptr: nothing is being filled.
  StoreFiller* filler() { return filler_.get(); }
  // Ends the filling, and commits step 0 with `user`, an object.
  absl::Status Start(Json user);
  // Opens the newest committed step, and applies the gradients that a crash has left.
  // BadInputError: there is no store. CorruptError: it is damaged. UsageError: it is of another
  // inventory or of other options.
  absl::Status Open();
  // Has the call of BeginCreate, filling, Start or Open that is under way, or else the next, end
  // soon with InterruptedError. Any thread.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }

  // nullptr before Start and Open.
  LayerSession* session() { return session_.get(); }

 private:
  EmbeddedRun(EmbeddedOptions options, Inventory inventory)
      : options_(std::move(options)), inventory_(std::move(inventory)) {}
  absl::Status MakePlan(const MachineLimits& limits, bool store_exists);
  bool TakeStop() { return stopped_.exchange(false, std::memory_order_relaxed); }
  absl::Status RemoveHalfMade() const;
  absl::Status OpenIo();
  absl::Status CheckCanBegin(std::string_view call) const;
  absl::Status CheckStoreIsOurs(const TensorStore& store) const;
  absl::Status Begin(std::unique_ptr<TensorStore> store);
  absl::Status ApplyKeptGradients();

  EmbeddedOptions options_;
  const Inventory inventory_;
  OffloadPlan plan_;
  std::atomic<bool> stopped_{false};
  std::string note_;
  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<MemoryBudget> budget_;
  OpenedEngine engine_;
  std::unique_ptr<StoreFiller> filler_;
  std::shared_ptr<LayerSession> session_;
};

}  // namespace forebay
