// Training steps without the model: the trainer's own store, window, optimizer pipeline and commits
// in the trainer's own order, with nothing computed between the accesses. What it reads and writes
// is what a run reads and writes; how long it takes is what the disk (and, with AdamW, the update)
// takes alone.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/parallel.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/replay/no_arithmetic.h"
#include "forebay/replay/no_compute.h"
#include "forebay/replay/replay_plan.h"
#include "forebay/step/layer_walk.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/swap/window/swapper_source.h"

namespace forebay {

enum class ReplayCompute : uint8_t {
  kNone,   // I/O alone
  kAdamW,  // rounds gradients and updates tiles as a run does
};

struct ReplayedStep {
  double seconds = 0;
  StepTransfers transfers;  // as the engine counted them
  double wait_s = 0;        // for weights
  double update_s = 0;      // in the kernels
  double commit_s = 0;      // for the writes that were left, the flushes and the record
};

// Owned by one thread.
class StepReplay {
 public:
  // `store`: of the plan's inventory, layout, tiles, slots and gradient area, with a commit.
  // Everything pointed to must outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<StepReplay>> Create(const ReplayPlan& plan,
                                                            ReplayCompute compute, int num_threads,
                                                            TensorStore* store,
                                                            MemoryBudget* budget);

  // The loss and a backward pass, after which window and gradients are as between any two steps of
  // a run. Before the first RunStep. `stop` is asked between layers: InterruptedError.
  // StorageError.
  absl::Status Start(const std::function<bool()>& stop);
  // One step, from the moment when the gradients' norm is known to the same moment of the next. At
  // both nothing is in flight, but without commits the last writes of the update.
  absl::StatusOr<ReplayedStep> RunStep(const std::function<bool()>& stop);

 private:
  StepReplay(const ReplayPlan& plan, int num_threads, TensorStore* store);
  void FillGradient();
  // What a run does before the update of a step.
  absl::Status MakeReady(int64_t step);
  absl::Status Commit();
  WalkHooks HooksOf(const std::function<bool()>& stop);

  const ReplayPlan plan_;
  LayerWalk step_walk_;
  LayerWalk walk_from_loss_;
  TensorStore* const store_;
  ThreadPool pool_;
  const NoArithmetic nothing_;
  int64_t step_ = 0;
  HostBuffer gradient_;                 // of the largest layer, the same for all
  std::unique_ptr<NoCompute> compute_;  // ends after the swapper, which waits for its events
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  std::unique_ptr<Swapper> swapper_;  // ends before the optimizer that it calls
  std::unique_ptr<SwapperSource> source_;
};

}  // namespace forebay
