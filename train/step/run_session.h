// Everything that is open while a run trains: store, optimizer, swapper, model and step, made from
// one plan.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/swap/window/swapper_source.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/training_step.h"

namespace forebay {

// Owned by the training thread.
class RunSession {
 public:
  // Takes over the store. `engine` and `budget` must outlive the session.
  static absl::StatusOr<std::unique_ptr<RunSession>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            std::unique_ptr<TensorStore> store,
                                                            MemoryBudget* budget);

  TensorStore& store() { return *store_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }
  Swapper& swapper() { return *swapper_; }
  SwapperSource& source() { return *source_; }
  Decoder& decoder() { return *decoder_; }
  DecoderCompute& compute() { return *compute_; }
  TrainingStep& step() { return *step_; }

  // Applies every released update and waits until all of it is written: the store may then commit.
  absl::Status FinishUpdates();
  // Forgets the step in progress (its gradients and announced accesses); released updates of the
  // step before stay due, or pending.
  void AbandonStep();

 private:
  RunSession() = default;

  // In this order, so that each is destroyed before what it uses; the swapper waits for events of
  // the computation.
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<DecoderCompute> compute_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  std::unique_ptr<Swapper> swapper_;
  std::unique_ptr<SwapperSource> source_;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace forebay
