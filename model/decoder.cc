#include "forebay/model/decoder.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_impl.h"
#include "forebay/model/rope.h"

namespace forebay {
namespace {

constexpr char kScratchPurpose[] = "compute scratch";

WorkspaceShape ShapeOf(const DecoderOptions& options) {
  return {.max_tokens = options.max_tokens, .training = options.training};
}

int64_t WorkspaceBytes(const DecoderConfig& config, const DecoderOptions& options) {
  DecoderWorkspace unplaced;
  return HostBuffer::ChargedBytes(PlaceWorkspace(config, ShapeOf(options), nullptr, unplaced));
}

int64_t ComputeScratchBytes(const DecoderConfig& config, const DecoderOptions& options) {
  return cpu::ScratchBytes(options.num_threads, options.precision, options.max_tokens,
                           config.hidden_size, config.intermediate_size, config.vocab_size,
                           config.head_dim, config.num_heads * config.head_dim);
}

bool AllBelow(std::span<const int32_t> indices, int64_t bound) {
  return std::ranges::all_of(indices, [=](int32_t index) { return index >= 0 && index < bound; });
}

}  // namespace

int64_t DecoderWorkspaceBytes(const DecoderConfig& config, const DecoderOptions& options) {
  return WorkspaceBytes(config, options) + ComputeScratchBytes(config, options);
}

int64_t SavedBytes(const DecoderConfig& config, Recompute recompute, int64_t tokens) {
  DecoderWorkspace unplaced;
  return PlaceSaved(config, recompute, tokens, nullptr, unplaced);
}

ScratchCharge::~ScratchCharge() {
  if (budget_ != nullptr) budget_->Release(kScratchPurpose, size_bytes_);
}

absl::Status ScratchCharge::Charge(MemoryBudget* budget, int64_t size_bytes) {
  FOREBAY_CHECK(budget_ == nullptr);
  FOREBAY_RETURN_IF_ERROR(budget->Charge(kScratchPurpose, size_bytes));
  budget_ = budget;
  size_bytes_ = size_bytes;
  return absl::OkStatus();
}

Decoder::Impl::Impl(const DecoderConfig& decoder_config, const DecoderOptions& decoder_options)
    : config(decoder_config),
      options(decoder_options),
      inventory(BuildInventory(config)),
      tensors(ResolveTensors(config, inventory)),
      query_width(config.num_heads * config.head_dim),
      key_width(config.num_kv_heads * config.head_dim),
      walk_with_logits(ForwardOperations(ChainOf(config))),
      walk_without_logits(ForwardOperationsWithoutLoss(ChainOf(config))),
      context(options.num_threads, options.precision) {}

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::~Decoder() = default;
const DecoderConfig& Decoder::config() const {
  return impl_->config;
}
const DecoderOptions& Decoder::options() const {
  return impl_->options;
}
const Inventory& Decoder::inventory() const {
  return impl_->inventory;
}
cpu::Context& Decoder::context() {
  return impl_->context;
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const DecoderConfig& config,
                                                         const DecoderOptions& options,
                                                         MemoryBudget* budget) {
  FOREBAY_CHECK(options.max_tokens > 0);
  auto impl = std::make_unique<Impl>(config, options);
  FOREBAY_ASSIGN_OR_RETURN(impl->memory, HostBuffer::Create(budget, "activations of one block",
                                                            WorkspaceBytes(config, options)));
  FOREBAY_RETURN_IF_ERROR(impl->scratch.Charge(budget, ComputeScratchBytes(config, options)));
  DecoderWorkspace& workspace = impl->workspace;
  PlaceWorkspace(config, ShapeOf(options), impl->memory.data(), workspace);
  if (config.positions == PositionKind::kRope) {
    const size_t size = impl->RopeTableOfBatches().cos.size();
    FillRopeRows(config.rope, config.head_dim, options.max_tokens, {workspace.rope_cos, size},
                 {workspace.rope_sin, size});
  }
  return std::unique_ptr<Decoder>(new Decoder(std::move(impl)));
}

// They become addresses; whoever read the data has refused what does not fit the model.
void Decoder::CheckTokens(const MicroBatch& batch) const {
  FOREBAY_CHECK(static_cast<int64_t>(batch.tokens.size()) <= impl_->options.max_tokens);
  FOREBAY_CHECK(AllBelow(batch.tokens, impl_->config.vocab_size));
  FOREBAY_CHECK(batch.positions.size() == batch.tokens.size() &&
                AllBelow(batch.positions, impl_->config.max_positions));
}

void Decoder::Embed(const LayerWeights& embed, const MicroBatch& batch, std::span<float> x) {
  Impl& impl = *impl_;
  const int64_t hidden = impl.config.hidden_size;
  FOREBAY_CHECK(x.size() == batch.tokens.size() * hidden);
  CheckTokens(batch);
  cpu::EmbeddingForward(impl.context, ElementOf(embed, impl.tensors.token_embedding), embed.dtype,
                        batch.tokens, hidden, x.data(), /*accumulate=*/false);
  if (impl.config.positions == PositionKind::kLearned) {
    cpu::EmbeddingForward(impl.context, ElementOf(embed, impl.tensors.position_embedding),
                          embed.dtype, batch.positions, hidden, x.data(), /*accumulate=*/true);
  }
}

void Decoder::BackwardEmbed(const MicroBatch& batch, std::span<const float> dx,
                            std::span<float> gradient) {
  Impl& impl = *impl_;
  const int64_t hidden = impl.config.hidden_size;
  FOREBAY_CHECK(dx.size() == batch.tokens.size() * hidden);
  cpu::EmbeddingBackward(impl.context, batch.tokens, hidden, dx.data(),
                         ElementOf(gradient, impl.tensors.token_embedding));
  if (impl.config.positions == PositionKind::kLearned) {
    cpu::EmbeddingBackward(impl.context, batch.positions, hidden, dx.data(),
                           ElementOf(gradient, impl.tensors.position_embedding));
  }
}

Linear Decoder::Impl::Projection(const LayerWeights& head, const LayerWeights& embed) const {
  return tensors.projection.View(config.tied_embeddings ? embed : head);
}

cpu::LossResult Decoder::Loss(const LayerWeights& head, const LayerWeights& embed,
                              const MicroBatch& batch, std::span<const float> x) {
  Impl& impl = *impl_;
  const DecoderWorkspace& workspace = impl.workspace;
  impl.Normalize(impl.tensors.final_norm, head, x.data(), batch.tokens.size(),
                 impl.config.hidden_size, workspace.normed, workspace.attention_statistics);
  return cpu::CrossEntropyForward(impl.context, impl.Projection(head, embed), workspace.normed,
                                  batch.targets);
}

cpu::LossResult Decoder::LossAndGradient(const LayerWeights& head, const LayerWeights& embed,
                                         const MicroBatch& batch, std::span<const float> x,
                                         double scale, std::span<float> dx,
                                         std::span<float> head_gradient,
                                         std::span<float> embed_gradient) {
  Impl& impl = *impl_;
  const DecoderWorkspace& workspace = impl.workspace;
  const int64_t tokens = batch.tokens.size();
  const int64_t hidden = impl.config.hidden_size;
  const NormStatistics& statistics = workspace.attention_statistics;
  impl.Normalize(impl.tensors.final_norm, head, x.data(), tokens, hidden, workspace.normed,
                 statistics);
  float* const d_normed = workspace.residual;
  const std::span<float> projection_gradient =
      impl.config.tied_embeddings ? embed_gradient : head_gradient;
  const cpu::LossResult result = cpu::CrossEntropyForwardBackward(
      impl.context, impl.Projection(head, embed), workspace.normed, batch.targets, scale, d_normed,
      ElementOf(projection_gradient, impl.tensors.projection.weight));
  impl.NormalizeBackward(impl.tensors.final_norm, head, x.data(), statistics, d_normed, tokens,
                         hidden, dx.data(), /*accumulate=*/false, head_gradient);
  return result;
}

}  // namespace forebay
