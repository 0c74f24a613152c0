// Everything that is open while a run trains: the layer session (store, window, optimizer), the
// model, and the step, made from one plan.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/device/matmul_algorithms.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/offload/layer_session.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/run_compute.h"
#include "forebay/train/step/training_step.h"

namespace forebay {

// Owned by the training thread.
class RunSession {
 public:
  // Takes over the store. The engine and `budget` must outlive the session. `session_options`: the
  // trainer's functions; the rest follows from `options`. `algorithms`: as of RunCompute::Create.
  static absl::StatusOr<std::unique_ptr<RunSession>> Create(
      const Plan& plan, const TrainOptions& options, const DecoderConfig& config,
      std::unique_ptr<TensorStore> store, MemoryBudget* budget, LayerSessionOptions session_options,
      MatmulAlgorithms* algorithms = nullptr);

  ~RunSession();

  LayerSession& layers() { return *layers_; }
  TensorStore& store() { return layers_->store(); }
  TrainingStep& step() { return *step_; }
  RunCompute& compute() { return *compute_; }

 private:
  RunSession() = default;

  // In this order, so that each is destroyed before what it uses.
  std::unique_ptr<RunCompute> compute_;
  std::shared_ptr<LayerSession> layers_;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace forebay
