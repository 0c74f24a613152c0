#include "forebay/train/infer/evaluate_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/train/files/pack_cache.h"
#include "forebay/train/infer/gpu_session.h"
#include "forebay/train/infer/model_session.h"
#include "forebay/train/plan/most_tokens.h"

namespace forebay {
namespace {

// More would save no time: computation hides the reading by then.
constexpr int64_t kMaxMicroBatchesPerPass = 64;

absl::StatusOr<int64_t> RowTokens(const EvaluateModelOptions& options,
                                  const DecoderConfig& config) {
  constexpr int64_t kUsual = 1024;
  if (options.seq.value_or(0) > config.max_positions) {
    return UsageError(
        fmt::format("--seq={} is more than the {} positions of the model; use --seq={} or less",
                    *options.seq, config.max_positions, config.max_positions));
  }
  if (options.seq.has_value()) return *options.seq;
  return PackedRowTokens(options.data).value_or(std::min(kUsual, config.max_positions));
}

absl::StatusOr<std::unique_ptr<PackedFile>> OpenPacked(
    const EvaluateModelOptions& options, int64_t seq,
    const std::function<void(const std::string&)>& on_note) {
  PackRequest request;
  request.data = options.data;
  request.model = options.infer.model;
  request.seq = seq;
  request.truncate = options.truncate;
  FOREBAY_ASSIGN_OR_RETURN(const PackResult packed, PackedInCache(std::move(request)));
  for (const std::string& note : packed.notes) on_note("data: " + note);
  return PackedFile::Open(packed.path);
}

// Micro-batches that go through the layers together, at most.
int64_t MostMicroBatches(const PackedFile& data, const EvaluateOptions& options) {
  const int64_t rows = options.rows_per_micro_batch;
  return std::clamp<int64_t>((data.info().num_rows + rows - 1) / rows, 1, kMaxMicroBatchesPerPass);
}

absl::StatusOr<EvaluationResult> EvaluateOnCpu(const InferOptions& infer,
                                               const MachineLimits& limits,
                                               const DecoderConfig& config, const PackedFile& data,
                                               const EvaluateOptions& options) {
  ModelSessionOptions session_options;
  session_options.infer = infer;
  session_options.max_tokens = options.rows_per_micro_batch * data.info().seq;
  const int64_t bytes_of_one = ForwardBytes(config, session_options.max_tokens);
  // For any number of them, so that what is left is for activations.
  const int64_t most_batches = MostMicroBatches(data, options);
  const int64_t sums_bytes =
      HostBuffer::ChargedBytes(LogitSumsBytes(config, most_batches * session_options.max_tokens));
  session_options.other_bytes = sums_bytes + HostBuffer::ChargedBytes(bytes_of_one);
  session_options.other_bytes_at_most =
      sums_bytes +
      HostBuffer::ChargedBytes(ForwardBytes(config, most_batches * session_options.max_tokens));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSession> session,
                           ModelSession::Open(session_options, limits, config));
  const int64_t batches_per_pass =
      std::min(most_batches, (session->other_bytes() - sums_bytes) / bytes_of_one);
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<DecoderCompute> compute,
      DecoderCompute::CreateForEvaluation(
          &session->decoder(), batches_per_pass * session_options.max_tokens, &session->budget()));
  return Evaluate({config, *compute, session->source(), compute->most_forward_tokens()}, data,
                  options);
}

GpuNeeds NeedsOf(const DecoderConfig& config, const CudaDecoderOptions& decoder) {
  const CudaDecoderMemory memory = CudaDecoderMemoryFor(config, decoder);
  return {.terms = {{"activations", memory.activation_bytes, "--batch or --seq"},
                    {"decoder workspace", memory.workspace_bytes, "--batch or --seq"},
                    {"tokens of a pass", memory.micro_batch_bytes, "--batch or --seq"}},
          .host_bytes = CudaDecoderHostBytes(config, decoder)};
}

// As many micro-batches go through the layers together as the GPU has room for: each pass copies
// all weights there.
absl::StatusOr<EvaluationResult> EvaluateOnGpu(const InferOptions& infer,
                                               const MachineLimits& limits,
                                               const DecoderConfig& config, const PackedFile& data,
                                               const EvaluateOptions& options) {
  CudaDecoderOptions decoder;
  decoder.dtype = cpu::WeightDType(infer.precision);
  decoder.max_tokens = options.rows_per_micro_batch * data.info().seq;
  decoder.training = false;
  decoder.num_batches = MostMicroBatches(data, options) + 1;
  GpuNeeds needs;
  do {
    --decoder.num_batches;
    decoder.step_tokens = decoder.num_batches * decoder.max_tokens;
    needs = NeedsOf(config, decoder);
  } while (decoder.num_batches > 1 && !PlanOnGpu(infer, limits, config, needs).ok());

  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<GpuSession> session,
                           GpuSession::Open(infer, limits, config, needs));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDecoder> compute,
                           CreateCudaDecoder(config, decoder, session->device(),
                                             session->device_budget(), session->host_budget()));
  FOREBAY_ASSIGN_OR_RETURN(GpuSession::Weights weights, session->OpenWeights());
  return Evaluate({config, *compute, weights.source(), decoder.step_tokens}, data, options);
}

}  // namespace

absl::StatusOr<EvaluationResult> EvaluateModel(
    const EvaluateModelOptions& options,
    const std::function<void(const std::string&, double)>& progress,
    const std::function<void(const std::string&)>& on_note) {
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(options.infer.model));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t seq, RowTokens(options, config));
  if (options.batch * seq > kMostTokensAtOnce) {
    return UsageError(fmt::format("--batch={} times rows of {} tokens is {} tokens; the most is {}",
                                  options.batch, seq, options.batch * seq, kMostTokensAtOnce));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFile> data,
                           OpenPacked(options, seq, on_note));
  EvaluateOptions evaluate;
  evaluate.rows_per_micro_batch = options.batch;
  evaluate.progress = [&](double fraction) {
    if (progress) progress("evaluating", fraction);
    return absl::OkStatus();
  };
  const MachineLimits limits = LimitsFor(options.infer);
  const auto on_device = IsForGpu(options.infer, limits) ? EvaluateOnGpu : EvaluateOnCpu;
  FOREBAY_ASSIGN_OR_RETURN(const EvaluationResult result,
                           on_device(options.infer, limits, config, *data, evaluate));
  if (std::isfinite(result.loss)) return result;
  return NumericalError(fmt::format(
      "eval: the loss of '{}' on '{}' is not finite. The model's weights hold NaN or infinity, or "
      "overflow in this precision; try --precision=fp32",
      options.infer.model, options.data));
}

}  // namespace forebay
