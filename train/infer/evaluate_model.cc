#include "forebay/train/infer/evaluate_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/train/files/pack_cache.h"
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

absl::StatusOr<std::unique_ptr<PackedFile>> OpenPacked(const EvaluateModelOptions& options,
                                                       int64_t seq) {
  PackRequest request;
  request.data = options.data;
  request.model = options.model;
  request.seq = seq;
  request.truncate = options.truncate;
  FOREBAY_ASSIGN_OR_RETURN(const PackResult packed, PackedInCache(std::move(request)));
  return PackedFile::Open(packed.path);
}

}  // namespace

absl::StatusOr<EvaluationResult> EvaluateModel(
    const EvaluateModelOptions& options,
    const std::function<void(const std::string&, double)>& progress) {
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(options.model));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t seq, RowTokens(options, config));
  if (options.batch * seq > kMostTokensAtOnce) {
    return UsageError(fmt::format("--batch={} times rows of {} tokens is {} tokens; the most is {}",
                                  options.batch, seq, options.batch * seq, kMostTokensAtOnce));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedFile> data, OpenPacked(options, seq));
  const int64_t num_batches = (data->info().num_rows + options.batch - 1) / options.batch;
  const auto bytes_for = [&](int64_t micro_batches) {
    return ForwardBytes(config, micro_batches * options.batch * data->info().seq);
  };
  ModelSessionOptions session_options;
  session_options.model = options.model;
  session_options.ram_bytes = options.ram_bytes;
  session_options.precision = options.precision;
  session_options.threads = options.threads;
  session_options.max_tokens = options.batch * data->info().seq;
  session_options.other_bytes = bytes_for(1);
  session_options.other_bytes_at_most = bytes_for(std::min(num_batches, kMaxMicroBatchesPerPass));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSession> session,
                           ModelSession::Open(session_options, config));
  const int64_t batches_per_pass = session->other_bytes() / bytes_for(1);
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<DecoderCompute> compute,
      DecoderCompute::CreateForEvaluation(
          &session->decoder(), batches_per_pass * session_options.max_tokens, &session->budget()));
  EvaluateOptions evaluate;
  evaluate.rows_per_micro_batch = options.batch;
  evaluate.progress = [&](double fraction) {
    if (progress) progress("evaluating", fraction);
    return absl::OkStatus();
  };
  FOREBAY_ASSIGN_OR_RETURN(
      const EvaluationResult result,
      Evaluate({config, *compute, session->source(), compute->most_forward_tokens()}, *data,
               evaluate));
  if (std::isfinite(result.loss)) return result;
  return NumericalError(fmt::format(
      "eval: the loss of '{}' on '{}' is not finite. The model's weights hold NaN or infinity, or "
      "overflow in this precision; try --precision=fp32",
      options.model, options.data));
}

}  // namespace forebay
