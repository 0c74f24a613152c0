// Everything that is open while a run trains: the layer session (store, window, optimizer), the
// model, and the step, made from one plan.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/offload/layer_session.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/training_step.h"

namespace forebay {

// Owned by the training thread.
class RunSession {
 public:
  // Takes over the store. The engine and `budget` must outlive the session. `session_options`: the
  // trainer's functions; the rest follows from `options`.
  static absl::StatusOr<std::unique_ptr<RunSession>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            std::unique_ptr<TensorStore> store,
                                                            MemoryBudget* budget,
                                                            LayerSessionOptions session_options);

  LayerSession& layers() { return *layers_; }
  TensorStore& store() { return layers_->store(); }
  Decoder& decoder() { return *decoder_; }
  DecoderCompute& compute() { return *compute_; }
  TrainingStep& step() { return *step_; }

 private:
  RunSession() = default;

  // In this order, so that each is destroyed before what it uses; the window waits for events of
  // the computation.
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<DecoderCompute> compute_;
  std::shared_ptr<LayerSession> layers_;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace forebay
