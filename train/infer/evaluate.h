// The loss of a model on packed data, without training: held-out evaluation and `forebay eval`.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/data/packed_file.h"
#include "forebay/model/decoder_config.h"
#include "forebay/step/layer_compute.h"
#include "forebay/step/param_source.h"

namespace forebay {

// A model, and who computes it with which weights.
struct EvaluatedModel {
  const DecoderConfig& config;
  LayerCompute& compute;
  ParamSource& source;
  int64_t most_forward_tokens = 0;  // of a pass of `compute` that keeps no activation
};

struct EvaluateOptions {
  // Rows of one micro-batch. Requires: rows * seq is at most what a micro-batch of `compute` may
  // have, and most_forward_tokens.
  int64_t rows_per_micro_batch = 1;
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

// Every row of `data` once, in order. Weights stream once per pass of as many micro-batches as
// there is room for: the result is the same bits however many these are. Announces exactly
// what it acquires; errors are the source's and the data's. BadInputError when no token is trained,
// or a token is not below the model's vocabulary, or the rows are longer than the model's
// positions.
absl::StatusOr<EvaluationResult> Evaluate(const EvaluatedModel& model, const PackedFile& data,
                                          const EvaluateOptions& options);

// {"loss", "perplexity", "trained_tokens", "tokens"}.
Json ToJson(const EvaluationResult& result);

}  // namespace forebay
