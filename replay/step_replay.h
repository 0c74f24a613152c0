// Training steps without the model: the trainer's own session (offload/layer_session.h) in the
// trainer's own order, with nothing computed between the accesses. It reads and writes what
// a run reads and writes; how long it takes is what the disk (and, with AdamW, the update) takes
// alone.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "forebay/base/process/parallel.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/offload/layer_session.h"
#include "forebay/offload/plan.h"
#include "forebay/replay/no_arithmetic.h"
#include "forebay/replay/no_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/step_transfers.h"

namespace forebay {

enum class ReplayCompute : uint8_t {
  kNone,   // I/O alone
  kAdamW,  // rounds gradients and updates tiles as a run does
};

struct StepReplayOptions {
  OffloadOptions offload;  // that the plan was made with
  ReplayCompute compute = ReplayCompute::kNone;
  int num_threads = 1;  // of the update
};

struct ReplayedStep {
  double seconds = 0;
  StepTransfers transfers;  // as the engine counted them
  double wait_s = 0;        // for weights, and for gradients to be taken
  double update_s = 0;      // in the kernels
  double commit_s = 0;      // for the writes that were left, the flushes and the record
};

// Owned by one thread.
class StepReplay {
 public:
  // Takes over the store, as LayerSession::Create does, whose errors these are. `budget` and the
  // store's engine must outlive the replay.
  static absl::StatusOr<std::unique_ptr<StepReplay>> Create(const OffloadPlan& plan,
                                                            const StepReplayOptions& options,
                                                            std::unique_ptr<TensorStore> store,
                                                            MemoryBudget* budget);

  // The loss and a backward pass, after which window and gradients are as between any two steps of
  // a run. Before the first RunStep. `stop` is asked between layers: InterruptedError.
  // StorageError.
  absl::Status Start(const std::function<bool()>& stop);
  // One step, from the moment when the gradients' norm is known to the same moment of the next. At
  // both nothing is in flight, but without commits the last writes of the update.
  absl::StatusOr<ReplayedStep> RunStep(const std::function<bool()>& stop);

  TensorStore& store() { return session_->store(); }

 private:
  StepReplay(const OffloadPlan& plan, int num_threads);
  void FillGradient(const Inventory& inventory);
  absl::Status RunPass(LayerWalk& walk, const std::function<bool()>& stop, double& commit_s);

  LayerWalk step_walk_;
  LayerWalk walk_from_loss_;
  ThreadPool pool_;
  const NoArithmetic nothing_;
  HostBuffer gradient_;                 // of the largest layer, the same for all
  std::unique_ptr<NoCompute> compute_;  // ends after the session, whose window waits for its events
  std::shared_ptr<LayerSession> session_;
};

}  // namespace forebay
