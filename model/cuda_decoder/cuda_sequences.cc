#include "forebay/model/cuda_decoder/cuda_sequences.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda/attention_cached.h"
#include "forebay/model/cuda/ops.h"
#include "forebay/model/cuda_decoder/cuda_block.h"
#include "forebay/model/cuda_decoder/sequences_layout.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_tensors.h"
#include "forebay/model/rope.h"
#include "forebay/step/forward_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"

namespace forebay {
namespace {

// The tokens of a pass are one batch. Where all of them are the first of their sequences, they
// attend to each other as in training; else to what is cached.
class CudaSequences final : public Sequences, private ForwardCompute {
 public:
  CudaSequences(const DecoderConfig& config, const CudaSequencesOptions& options)
      : config_(config),
        options_(options),
        tensors_(ResolveTensors(config, BuildInventory(config))),
        layout_(config, options),
        walk_with_logits_(ForwardOperations(ChainOf(config))),
        walk_without_logits_(ForwardOperationsWithoutLoss(ChainOf(config))) {
    for (const int64_t max_length : options.max_lengths) {
      first_row_.push_back(first_row_.empty() ? 0 : first_row_.back() + longest_.back());
      longest_.push_back(max_length);
    }
    lengths_.resize(longest_.size());
  }
  absl::Status Allocate(Device* device, MemoryBudget* device_budget, MemoryBudget* host_budget);

  const DecoderConfig& config() const override { return config_; }
  size_t num_sequences() const override { return lengths_.size(); }
  int64_t length(size_t sequence) const override { return lengths_[sequence]; }
  absl::Status Extend(ParamSource& source, TokensOfSequences tokens,
                      std::span<float> logits) override;

 private:
  size_t num_micro_batches() const override { return 1; }
  absl::Status Forward(int layer, const HeldWeights& held, size_t batch) override;
  absl::Status Loss(int layer, const HeldWeights& held, size_t batch) override;
  Event* WeightsAreUsed(int layer) override { return used_[static_cast<size_t>(layer)].get(); }

  absl::Status UploadRope(MemoryBudget* host_budget);
  LayerWalk& WalkOfParts() {
    return WantsLogits(parts_) ? walk_with_logits_ : walk_without_logits_;
  }
  absl::Status RunPasses(ParamSource& source, TokensOfSequences tokens);
  // Copies parts_ to the GPU.
  absl::Status Begin();
  absl::Status Upload();
  int32_t* Numbers(int which) const {
    return reinterpret_cast<int32_t*>(host_tokens_.data() + which * layout_.numbers);
  }
  const int32_t* DeviceNumbers(int which) const {
    return reinterpret_cast<const int32_t*>(tokens_.address() + which * layout_.numbers);
  }
  cuda::CachedTokens NewTokens() const {
    return {batch_.tokens, DeviceNumbers(5), DeviceNumbers(2)};
  }

  // The layer's weights, which the stream waits for.
  absl::StatusOr<LayerWeights> Use(int layer, const HeldWeights& held);
  absl::Status EndUse(int layer) { return stream_->Record(*used_[static_cast<size_t>(layer)]); }
  absl::Status Embed(const LayerWeights& weights);
  absl::Status AttendCached(int block);
  absl::Status NormalizeLast(const LayerWeights& head);
  absl::Status FetchLogits(std::span<float> logits);

  const DecoderConfig config_;
  const CudaSequencesOptions options_;
  const DecoderTensors tensors_;
  const CudaSequencesLayout layout_;
  LayerWalk walk_with_logits_, walk_without_logits_;
  std::vector<int64_t> first_row_, longest_, lengths_;  // by sequence

  // Memory before the stream that uses it, so that it ends first; events before it too.
  DeviceAllocation workspace_memory_, rope_, tokens_, logits_;
  HostBuffer host_tokens_, host_logits_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<std::unique_ptr<Event>> used_;  // by layer
  std::unique_ptr<Event> uploaded_;
  std::unique_ptr<cuda::Context> context_;
  std::unique_ptr<Stream> stream_;
  CudaWorkspace workspace_;
  std::unique_ptr<CudaBlock> block_;

  // The pass:
  std::vector<SequencePart> parts_;
  DeviceBatch batch_;
  bool is_fresh_ = false;         // no token has others cached before it
  std::vector<int64_t> last_;     // tokens of the pass that logits are asked behind
  std::vector<size_t> answered_;  // the sequences of the rows in logits_, of all passes
};

absl::Status CudaSequences::UploadRope(MemoryBudget* host_budget) {
  if (layout_.rope == 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer tables,
      HostBuffer::Create(host_budget, "tables of positions for the GPU", layout_.rope));
  const auto elems = static_cast<size_t>(layout_.rope) / sizeof(float) / 2;
  const std::span<float> both = tables.As<float>().first(2 * elems);
  FillRopeRows(config_.rope, config_.head_dim, layout_.max_length, both.first(elems),
               both.last(elems));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(rope_.address(), std::as_bytes(both)));
  // A sequence may be longer than a pass.
  workspace_.rope_cos = reinterpret_cast<float*>(rope_.address());
  workspace_.rope_sin = workspace_.rope_cos + elems;
  return stream_->Await();
}

absl::Status CudaSequences::Allocate(Device* device, MemoryBudget* device_budget,
                                     MemoryBudget* host_budget) {
  const auto allocate = [&](DeviceAllocation& to, std::string_view purpose,
                            int64_t size_bytes) -> absl::Status {
    FOREBAY_ASSIGN_OR_RETURN(to,
                             DeviceAllocation::Create(device_budget, device, purpose, size_bytes));
    return absl::OkStatus();
  };
  FOREBAY_RETURN_IF_ERROR(
      allocate(workspace_memory_, "activations of one block", layout_.block.workspace));
  PlaceWorkspace(config_, layout_.block.workspace_shape, workspace_memory_.address(), workspace_);
  FOREBAY_RETURN_IF_ERROR(allocate(rope_, "tables of positions", layout_.rope));
  FOREBAY_RETURN_IF_ERROR(allocate(tokens_, "new tokens", layout_.tokens));
  FOREBAY_RETURN_IF_ERROR(allocate(logits_, "logits (fp32)", layout_.logits));
  FOREBAY_ASSIGN_OR_RETURN(host_tokens_, HostBuffer::Create(host_budget, "new tokens for the GPU",
                                                            layout_.tokens, {.device = device}));
  FOREBAY_ASSIGN_OR_RETURN(host_logits_, HostBuffer::Create(host_budget, "logits of the GPU",
                                                            layout_.logits, {.device = device}));
  FOREBAY_ASSIGN_OR_RETURN(stream_, device->CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(cache_, SequenceCache::Create(layout_.cache, device, stream_.get(),
                                                         device_budget, host_budget));
  FOREBAY_ASSIGN_OR_RETURN(uploaded_, device->CreateEvent());
  for (int layer = 0; layer <= HeadLayer(config_); ++layer) {
    FOREBAY_ASSIGN_OR_RETURN(used_.emplace_back(), device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(context_,
                           cuda::Context::Create(device, stream_.get(), device_budget,
                                                 {.dtype = options_.dtype,
                                                  .tf32 = options_.tf32,
                                                  .scratch_bytes = layout_.block.scratch}));
  block_ = std::make_unique<CudaBlock>(config_, context_.get(), workspace_);
  return UploadRope(host_budget);
}

// ---- Extending ----------------------------------------------------------------------------------

absl::Status CudaSequences::Upload() {
  batch_.token = DeviceNumbers(0);
  batch_.position = DeviceNumbers(1);
  batch_.segment_begin = DeviceNumbers(3);
  batch_.segment_end = DeviceNumbers(4);
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(
      tokens_.address(), host_tokens_.bytes().first(static_cast<size_t>(layout_.tokens))));
  return stream_->Record(*uploaded_);
}

absl::Status CudaSequences::Begin() {
  FOREBAY_RETURN_IF_ERROR(uploaded_->Await());  // the pass before
  batch_.tokens = 0;
  is_fresh_ = true;
  last_.clear();
  std::vector<SequenceCache::Rows> cached, added;
  for (const SequencePart& part : parts_) {
    const int64_t before = lengths_[part.sequence];
    cached.push_back({first_row_[part.sequence], before});
    added.push_back({first_row_[part.sequence] + before, std::ssize(part.tokens)});
    const int64_t first_rope_row = FirstRopeRow(config_.rope, longest_[part.sequence]);
    const int64_t first = batch_.tokens;
    const int64_t end = first + std::ssize(part.tokens);
    for (int64_t i = first; i < end; ++i) {
      const int64_t position = before + i - first;
      Numbers(0)[i] = part.tokens[i - first];
      Numbers(1)[i] = static_cast<int32_t>(first_rope_row + position);
      Numbers(2)[i] = static_cast<int32_t>(first_row_[part.sequence] + position);
      Numbers(3)[i] = static_cast<int32_t>(first);
      Numbers(4)[i] = static_cast<int32_t>(end);
      Numbers(5)[i] = static_cast<int32_t>(position);
    }
    is_fresh_ = is_fresh_ && before == 0;
    batch_.tokens = end;
    if (!part.is_last) continue;
    last_.push_back(end - 1);
    answered_.push_back(part.sequence);
  }
  FOREBAY_RETURN_IF_ERROR(cache_->BeginPass(std::move(cached), std::move(added)));
  return Upload();
}

absl::Status CudaSequences::RunPasses(ParamSource& source, TokensOfSequences tokens) {
  // All passes are announced first, so that the source reads the next one's first layers during
  // this one's last.
  for (SequencePasses passes(tokens, options_.max_tokens); passes.Next(parts_);) {
    WalkOfParts().Announce(source);
  }
  answered_.clear();
  for (SequencePasses passes(tokens, options_.max_tokens); passes.Next(parts_);) {
    FOREBAY_RETURN_IF_ERROR(Begin());
    FOREBAY_RETURN_IF_ERROR(WalkOfParts().Run(source, *this, {}));
    for (const SequencePart& part : parts_) lengths_[part.sequence] += std::ssize(part.tokens);
  }
  return absl::OkStatus();
}

absl::Status CudaSequences::FetchLogits(std::span<float> logits) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const std::span<float> rows = host_logits_.As<float>().first(answered_.size() * vocab);
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(std::as_writable_bytes(rows), logits_.address()));
  FOREBAY_RETURN_IF_ERROR(stream_->Await());
  for (size_t row = 0; row < answered_.size(); ++row) {
    std::ranges::copy(rows.subspan(row * vocab, vocab), logits.begin() + answered_[row] * vocab);
  }
  return absl::OkStatus();
}

absl::Status CudaSequences::Extend(ParamSource& source, TokensOfSequences tokens,
                                   std::span<float> logits) {
  FOREBAY_CHECK(tokens.size() == num_sequences());
  FOREBAY_CHECK(logits.size() == num_sequences() * static_cast<size_t>(config_.vocab_size));
  for (size_t i = 0; i < tokens.size(); ++i) {
    FOREBAY_RETURN_IF_ERROR(CheckExtension(config_, tokens[i], lengths_[i], longest_[i]));
  }
  const std::vector<int64_t> lengths_before = lengths_;
  absl::Status status = RunPasses(source, tokens);
  if (status.ok()) status = FetchLogits(logits);
  if (!status.ok()) lengths_ = lengths_before;
  return status;
}

// ---- A pass over the layers ---------------------------------------------------------------------

absl::StatusOr<LayerWeights> CudaSequences::Use(int layer, const HeldWeights& held) {
  const LayerWeights& weights = held.Of(layer);
  FOREBAY_CHECK(weights.device == DeviceKind::kCuda && weights.dtype == options_.dtype);
  if (weights.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*weights.ready));
  return weights;
}

absl::Status CudaSequences::Embed(const LayerWeights& weights) {
  FOREBAY_RETURN_IF_ERROR(cuda::EmbeddingForward(
      *context_, ElementOf(weights, tensors_.token_embedding), batch_.token, batch_.tokens,
      config_.hidden_size, workspace_.residual, /*accumulate=*/false));
  if (config_.positions != PositionKind::kLearned) return absl::OkStatus();
  return cuda::EmbeddingForward(*context_, ElementOf(weights, tensors_.position_embedding),
                                batch_.position, batch_.tokens, config_.hidden_size,
                                workspace_.residual, /*accumulate=*/true);
}

absl::Status CudaSequences::AttendCached(int block) {
  const int64_t width = config_.num_kv_heads * config_.head_dim;
  FOREBAY_ASSIGN_OR_RETURN(const auto cached, cache_->Use(block));
  const auto [keys, values] = cached;
  FOREBAY_RETURN_IF_ERROR(cuda::AppendToCache(*context_, NewTokens(), width, workspace_.key, keys));
  FOREBAY_RETURN_IF_ERROR(
      cuda::AppendToCache(*context_, NewTokens(), width, workspace_.value, values));
  if (is_fresh_) {
    FOREBAY_RETURN_IF_ERROR(block_->AttendInSegments(block, batch_));
  } else {
    FOREBAY_RETURN_IF_ERROR(
        cuda::AttentionCached(*context_,
                              {.heads = config_.num_heads,
                               .kv_heads = config_.num_kv_heads,
                               .head_dim = config_.head_dim,
                               .window = config_.window.empty() ? 0 : config_.window[block]},
                              NewTokens(), workspace_.query, keys, values, workspace_.attended));
  }
  return cache_->End(block);
}

absl::Status CudaSequences::Forward(int layer, const HeldWeights& held, size_t /*batch*/) {
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights weights, Use(layer, held));
  if (layer == EmbedLayer()) {
    FOREBAY_RETURN_IF_ERROR(Embed(weights));
    return EndUse(layer);
  }
  const int block = layer - BlockLayer(0);
  FOREBAY_RETURN_IF_ERROR(block_->ForwardWith([&] { return AttendCached(block); },
                                              tensors_.blocks[block], weights, batch_,
                                              workspace_.residual, workspace_.residual));
  return EndUse(layer);
}

// The final norm of the tokens in last_, behind each other: as many at a time as are neighbours.
absl::Status CudaSequences::NormalizeLast(const LayerWeights& head) {
  const int64_t row_bytes = config_.hidden_size * SizeOf(options_.dtype);
  const auto* const x = static_cast<const std::byte*>(workspace_.residual);
  auto* const normed = static_cast<std::byte*>(workspace_.normed);
  const int64_t count = std::ssize(last_);
  for (int64_t first = 0, end = 0; first < count; first = end) {
    while (end < count && last_[end] - last_[first] == end - first) ++end;
    FOREBAY_RETURN_IF_ERROR(block_->Normalize(
        tensors_.final_norm, head, x + last_[first] * row_bytes, end - first, config_.hidden_size,
        normed + first * row_bytes, workspace_.attention_statistics));
  }
  return absl::OkStatus();
}

absl::Status CudaSequences::Loss(int layer, const HeldWeights& held, size_t /*batch*/) {
  FOREBAY_ASSIGN_OR_RETURN(const LayerWeights head, Use(layer, held));
  LayerWeights of_projection = head;
  if (config_.tied_embeddings) {
    FOREBAY_ASSIGN_OR_RETURN(of_projection, Use(EmbedLayer(), held));
  }
  FOREBAY_RETURN_IF_ERROR(NormalizeLast(head));
  const int64_t rows = std::ssize(last_);
  const int64_t rows_before = std::ssize(answered_) - rows;
  FOREBAY_RETURN_IF_ERROR(
      cuda::Logits(*context_, tensors_.projection.View(of_projection), workspace_.normed, rows,
                   reinterpret_cast<float*>(logits_.address()) + rows_before * config_.vocab_size));
  if (config_.tied_embeddings) FOREBAY_RETURN_IF_ERROR(EndUse(EmbedLayer()));
  return EndUse(layer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sequences>> CreateCudaSequences(const DecoderConfig& config,
                                                               const CudaSequencesOptions& options,
                                                               Device* device,
                                                               MemoryBudget* device_budget,
                                                               MemoryBudget* host_budget) {
  FOREBAY_CHECK(device->kind() == DeviceKind::kCuda);
  FOREBAY_CHECK(options.max_tokens > 0 && !options.max_lengths.empty());
  for (const int64_t max_length : options.max_lengths) {
    FOREBAY_RETURN_IF_ERROR(CheckMaxLength(config, max_length));
  }
  auto sequences = std::make_unique<CudaSequences>(config, options);
  FOREBAY_RETURN_IF_ERROR(sequences->Allocate(device, device_budget, host_budget));
  return sequences;
}

}  // namespace forebay
