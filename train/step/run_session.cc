#include "forebay/train/step/run_session.h"

#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/offload/parameter_groups_of.h"

namespace forebay {
namespace {

OffloadedOptimizerOptions OptimizerOptions(const TrainOptions& options, const Plan& plan,
                                           ParameterGroups groups) {
  OffloadedOptimizerOptions result;
  result.rule = RuleOf(options);
  result.groups = std::move(groups);
  result.gradient_dtype = options.grad_dtype;
  result.gradient_area = plan.gradient_area;
  result.num_threads = options.update_threads > 0 ? options.update_threads : options.threads;
  result.num_staging_tiles = plan.num_staging_tiles;
  result.hand_over_order = plan.schedule.Handed();
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunSession>> RunSession::Create(const Plan& plan,
                                                               const TrainOptions& options,
                                                               const DecoderConfig& config,
                                                               std::unique_ptr<TensorStore> store,
                                                               MemoryBudget* budget) {
  auto session = std::unique_ptr<RunSession>(new RunSession());
  const StepSchedule of_decoder = ChainSchedule(ChainOf(config));
  FOREBAY_CHECK(plan.schedule.Reads() == of_decoder.Reads());
  FOREBAY_CHECK(plan.schedule.Handed() == of_decoder.Handed());
  session->store_ = std::move(store);
  TensorStore* const tensors = session->store_.get();
  FOREBAY_ASSIGN_OR_RETURN(ParameterGroups groups,
                           ParameterGroupsOf(options, tensors->inventory()));
  FOREBAY_ASSIGN_OR_RETURN(
      session->optimizer_,
      OffloadedOptimizer::Create(OptimizerOptions(options, plan, std::move(groups)), plan.placement,
                                 tensors, budget));
  FOREBAY_ASSIGN_OR_RETURN(session->swapper_, Swapper::Create(plan.window, plan.placement, tensors,
                                                              session->optimizer_.get(), budget));
  session->source_ = std::make_unique<SwapperSource>(session->swapper_.get(),
                                                     WeightDType(tensors->tiles().layout()));
  DecoderOptions decoder_options;
  decoder_options.num_threads = options.threads;
  decoder_options.precision = options.precision;
  decoder_options.max_tokens = options.batch * options.seq;
  FOREBAY_ASSIGN_OR_RETURN(session->decoder_, Decoder::Create(config, decoder_options, budget));
  FOREBAY_ASSIGN_OR_RETURN(
      session->compute_,
      DecoderCompute::CreateForTraining(session->decoder_.get(), plan.tokens_per_step, budget));
  session->step_ = std::make_unique<TrainingStep>(plan.schedule, session->compute_.get(),
                                                  session->source_.get(), session->optimizer_.get(),
                                                  &session->decoder_->context().pool());
  return session;
}

absl::Status RunSession::FinishUpdates() {
  FOREBAY_RETURN_IF_ERROR(optimizer_->FinishDelayedUpdate());
  FOREBAY_RETURN_IF_ERROR(swapper_->ApplyAllUpdates());
  FOREBAY_RETURN_IF_ERROR(optimizer_->WriteDeferredState());
  return optimizer_->AwaitAllWrites();
}

void RunSession::AbandonStep() {
  swapper_->CancelExpected();
  optimizer_->AbandonStep();
}

}  // namespace forebay
