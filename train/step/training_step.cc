#include "forebay/train/step/training_step.h"

#include <algorithm>
#include <cstring>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

namespace {

// The order in which the functions below call OffloadedOptimizer::Hand.
std::vector<int> HandOverOrder(const Decoder& decoder) {
  std::vector<int> order = {HeadLayer(decoder.config())};
  for (const int layer : decoder.BackwardOrder()) order.push_back(layer);
  order.push_back(EmbedLayer());
  return order;
}

}  // namespace

absl::StatusOr<TrainingStep> TrainingStep::Create(Decoder* decoder, ParamSource* source,
                                                  OffloadedOptimizer* optimizer,
                                                  const StepSchedule& schedule,
                                                  int64_t tokens_per_step, MemoryBudget* budget) {
  FOREBAY_CHECK(schedule.forward == decoder->ForwardOrder());
  FOREBAY_CHECK(schedule.backward == decoder->BackwardOrder());
  FOREBAY_CHECK(schedule.handed == HandOverOrder(*decoder));
  const StepMemory memory = StepMemoryFor(decoder->config(), decoder->inventory(), tokens_per_step);
  TrainingStep step;
  step.decoder_ = decoder;
  step.source_ = source;
  step.optimizer_ = optimizer;
  step.tokens_per_step_ = tokens_per_step;
  step.schedule_ = schedule;
  step.accesses_ = schedule.Accesses();
  FOREBAY_ASSIGN_OR_RETURN(step.checkpoints_, HostBuffer::Create(budget, "activation checkpoints",
                                                                 memory.checkpoint_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      step.activation_gradient_,
      HostBuffer::Create(budget, "activation gradients", memory.activation_gradient_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      step.block_gradient_,
      HostBuffer::Create(budget, "gradient of one block (fp32)", memory.block_gradient_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      step.large_gradient_,
      HostBuffer::Create(budget, "gradient of the embedding (fp32)", memory.large_gradient_bytes));
  return step;
}

absl::StatusOr<StepResult> TrainingStep::Run(std::span<const MicroBatch> batches, double loss_scale,
                                             const Hooks& hooks) {
  StepResult result;
  first_token_.assign(1, 0);
  for (const MicroBatch& batch : batches) {
    first_token_.push_back(first_token_.back() + static_cast<int64_t>(batch.tokens.size()));
    result.num_tokens += batch.num_tokens;
    result.num_trained += batch.num_trained;
  }
  FOREBAY_CHECK(first_token_.back() <= tokens_per_step_);
  // Loss and gradients are means over all trained tokens of the step, not means of micro-batch
  // means.
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, result.num_trained));

  source_->Expect(accesses_);
  FOREBAY_RETURN_IF_ERROR(Forward(batches, hooks));
  FOREBAY_ASSIGN_OR_RETURN(const double loss_sum, LossAndHead(batches, scale * loss_scale, hooks));
  FOREBAY_RETURN_IF_ERROR(Backward(batches, hooks));
  FOREBAY_ASSIGN_OR_RETURN(const GradientStats gradient, optimizer_->FinishBackward());
  result.loss = loss_sum * scale;
  result.gradient_norm = gradient.norm / loss_scale;
  result.first_nonfinite_layer = gradient.first_nonfinite_layer;
  result.speculation_is_complete = gradient.speculation_is_complete;
  return result;
}

absl::Status TrainingStep::Forward(std::span<const MicroBatch> batches, const Hooks& hooks) {
  {
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease embed, source_->Acquire(EmbedLayer()));
    for (size_t b = 0; b < batches.size(); ++b) {
      decoder_->Embed(embed.weights(), batches[b], Checkpoint(0, b));
    }
  }
  const int num_layers = decoder_->config().num_layers;
  for (int block = 0; block < num_layers; ++block) {
    FOREBAY_RETURN_IF_ERROR(hooks.progress(0.25 * block / num_layers));
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source_->Acquire(BlockLayer(block)));
    for (size_t b = 0; b < batches.size(); ++b) {
      const std::span<float> input = Checkpoint(block, b);
      const std::span<float> output = Checkpoint(block + 1, b);
      std::memcpy(output.data(), input.data(), input.size_bytes());
      decoder_->ForwardBlock(block, lease.weights(), batches[b], output);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TrainingStep::LossAndHead(std::span<const MicroBatch> batches, double scale,
                                                 const Hooks& hooks) {
  const DecoderConfig& config = decoder_->config();
  const int head = HeadLayer(config);
  const std::span<float> head_gradient =
      ZeroedGradient(config.tied_embeddings ? block_gradient_ : large_gradient_, head);
  const std::span<float> embed_gradient =
      config.tied_embeddings ? ZeroedGradient(large_gradient_, EmbedLayer()) : std::span<float>();
  FOREBAY_RETURN_IF_ERROR(hooks.progress(0.25));
  double loss_sum = 0;
  {
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source_->Acquire(head));
    WeightsLease embed;
    if (config.tied_embeddings) {
      FOREBAY_ASSIGN_OR_RETURN(embed, source_->Acquire(EmbedLayer()));
    }
    for (size_t b = 0; b < batches.size(); ++b) {
      loss_sum += decoder_
                      ->LossAndGradient(lease.weights(), embed.weights(), batches[b],
                                        Checkpoint(config.num_layers, b), scale,
                                        ActivationGradient(b), head_gradient, embed_gradient)
                      .loss_sum;
    }
  }
  FOREBAY_RETURN_IF_ERROR(hooks.previous_step_applied());
  FOREBAY_RETURN_IF_ERROR(optimizer_->Hand(head, head_gradient, decoder_->context().pool()));
  return loss_sum;
}

absl::Status TrainingStep::Backward(std::span<const MicroBatch> batches, const Hooks& hooks) {
  const DecoderConfig& config = decoder_->config();
  ThreadPool& pool = decoder_->context().pool();
  for (const int layer : schedule_.backward) {
    const int block = layer - BlockLayer(0);
    FOREBAY_RETURN_IF_ERROR(
        hooks.progress(0.35 + 0.65 * (config.num_layers - 1 - block) / config.num_layers));
    const std::span<float> gradient = ZeroedGradient(block_gradient_, layer);
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source_->Acquire(layer));
    for (size_t b = 0; b < batches.size(); ++b) {
      decoder_->BackwardBlock(block, lease.weights(), batches[b], Checkpoint(block, b),
                              ActivationGradient(b), gradient);
    }
    FOREBAY_RETURN_IF_ERROR(optimizer_->Hand(layer, gradient, pool));
  }
  // The tied embedding's vector already holds what the output projection gave it.
  const int64_t embed_elems = decoder_->inventory().layers()[EmbedLayer()].num_elems;
  const std::span<float> gradient = config.tied_embeddings
                                        ? large_gradient_.As<float>().first(embed_elems)
                                        : ZeroedGradient(large_gradient_, EmbedLayer());
  for (size_t b = 0; b < batches.size(); ++b) {
    decoder_->BackwardEmbed(batches[b], ActivationGradient(b), gradient);
  }
  return optimizer_->Hand(EmbedLayer(), gradient, pool);
}

std::span<float> TrainingStep::Checkpoint(int block, size_t batch) const {
  const int64_t hidden = decoder_->config().hidden_size;
  return checkpoints_.As<float>().subspan((block * tokens_per_step_ + first_token_[batch]) * hidden,
                                          (first_token_[batch + 1] - first_token_[batch]) * hidden);
}

std::span<float> TrainingStep::ActivationGradient(size_t batch) const {
  const int64_t hidden = decoder_->config().hidden_size;
  return activation_gradient_.As<float>().subspan(
      first_token_[batch] * hidden, (first_token_[batch + 1] - first_token_[batch]) * hidden);
}

std::span<float> TrainingStep::ZeroedGradient(const HostBuffer& buffer, int layer) const {
  const std::span<float> gradient =
      buffer.As<float>().first(decoder_->inventory().layers()[layer].num_elems);
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  return gradient;
}

}  // namespace forebay
