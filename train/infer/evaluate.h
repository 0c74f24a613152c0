// The loss of a model on packed data, without training: held-out evaluation and `forebay eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/data/packed_file.h"
#include "forebay/model/decoder.h"
#include "forebay/model/param_source.h"

namespace forebay {

struct EvaluateOptions {
  // Rows of one micro-batch. Requires: rows * seq <= DecoderOptions::max_tokens.
  int64_t rows_per_micro_batch = 1;
  // Where the activations of the micro-batches of one pass wait for the next layer, fp32: room for
  // one micro-batch (EvaluationBytes) or more. The more it holds, the fewer passes over the
  // weights; the result is the same bits. Borrowed for the call: a trainer lends the memory of its
  // activation checkpoints.
  std::span<float> activations;
  // Called between layers with the fraction done, in [0, 1]; a failure ends the evaluation with
  // that status. May be empty.
  std::function<absl::Status(double fraction)> progress;
};

struct EvaluationResult {
  double loss = 0;          // mean over all trained tokens of -log p(token), nats
  double perplexity = 0;    // exp(loss)
  int64_t num_trained = 0;  // tokens that the mean is over
  int64_t num_tokens = 0;   // without padding
};

// Bytes of activations for `num_micro_batches` micro-batches in one pass.
int64_t EvaluationBytes(const DecoderConfig& config, int64_t rows_per_micro_batch, int64_t seq,
                        int64_t num_micro_batches);

// Every row of `data` once, in order. Weights stream once per pass of as many micro-batches as
// `activations` holds. Announces exactly what it acquires; errors are the source's and the data's.
// BadInputError when no token is trained, or a token is not below the model's vocabulary, or the
// rows are longer than the model's positions.
absl::StatusOr<EvaluationResult> Evaluate(Decoder& decoder, ParamSource& source,
                                          const PackedFile& data, const EvaluateOptions& options);

// {"loss", "perplexity", "trained_tokens", "tokens"}.
Json ToJson(const EvaluationResult& result);

}  // namespace forebay
