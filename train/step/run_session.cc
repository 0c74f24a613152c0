#include "forebay/train/step/run_session.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<RunSession>> RunSession::Create(
    const Plan& plan, const TrainOptions& options, const DecoderConfig& config,
    std::unique_ptr<TensorStore> store, MemoryBudget* budget, LayerSessionOptions session_options,
    MatmulAlgorithms* algorithms) {
  auto session = std::unique_ptr<RunSession>(new RunSession());
  const StepSchedule of_decoder = ChainSchedule(ChainOf(config, plan.recompute));
  FOREBAY_CHECK(plan.schedule.Reads() == of_decoder.Reads());
  FOREBAY_CHECK(plan.schedule.Handed() == of_decoder.Handed());
  FOREBAY_ASSIGN_OR_RETURN(session->compute_,
                           RunCompute::Create(plan, options, config, budget, algorithms));
  RunCompute& compute = *session->compute_;
  Communicator* const ranks = session_options.ranks;
  session_options.offload = options;
  session_options.threads = options.threads;
  session_options.pool = compute.pool();
  session_options.device = compute.device();
  session_options.device_budget = compute.device_budget();
  FOREBAY_ASSIGN_OR_RETURN(session->layers_, LayerSession::Create(plan, std::move(session_options),
                                                                  std::move(store), budget));
  FOREBAY_RETURN_IF_ERROR(compute.Attach(session->layers_.get()));
  session->step_ =
      std::make_unique<TrainingStep>(plan.schedule, &compute.compute(), &compute.source(),
                                     compute.activations(), session->layers_.get(), ranks);
  return session;
}

RunSession::~RunSession() {
  if (compute_ != nullptr) compute_->Detach();
}

}  // namespace forebay
