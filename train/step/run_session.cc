#include "forebay/train/step/run_session.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<RunSession>> RunSession::Create(
    const Plan& plan, const TrainOptions& options, const DecoderConfig& config,
    std::unique_ptr<TensorStore> store, MemoryBudget* budget, LayerSessionOptions session_options) {
  auto session = std::unique_ptr<RunSession>(new RunSession());
  const StepSchedule of_decoder = ChainSchedule(ChainOf(config));
  FOREBAY_CHECK(plan.schedule.Reads() == of_decoder.Reads());
  FOREBAY_CHECK(plan.schedule.Handed() == of_decoder.Handed());
  DecoderOptions decoder_options;
  decoder_options.num_threads = options.threads;
  decoder_options.precision = options.precision;
  decoder_options.max_tokens = options.batch * options.seq;
  FOREBAY_ASSIGN_OR_RETURN(session->decoder_, Decoder::Create(config, decoder_options, budget));
  session_options.offload = options;
  session_options.threads = options.threads;
  session_options.pool = &session->decoder_->context().pool();
  FOREBAY_ASSIGN_OR_RETURN(session->layers_, LayerSession::Create(plan, std::move(session_options),
                                                                  std::move(store), budget));
  FOREBAY_ASSIGN_OR_RETURN(session->compute_, DecoderCompute::CreateForTraining(
                                                  session->decoder_.get(), plan.tokens_per_step,
                                                  budget, session->layers_->activations()));
  session->step_ = std::make_unique<TrainingStep>(plan.schedule, session->compute_.get(),
                                                  session->layers_.get());
  return session;
}

}  // namespace forebay
