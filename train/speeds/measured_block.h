// The work by which speeds of computing are measured: one block of the model, tokens and random
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/data/micro_batch.h"
#include "forebay/model/decoder_config.h"
#include "forebay/train/options/options.h"

namespace forebay {

struct MeasuredTokens {
  int64_t rows = 0;
  int64_t seq = 0;  // of each row

  int64_t num_tokens() const { return rows * seq; }
};
// Those of a micro-batch, or `most_tokens` of them.
MeasuredTokens TokensToMeasure(const TrainOptions& options, int64_t most_tokens);
MicroBatch BatchOf(const MeasuredTokens& tokens);

// The model with one block, and with few words: the head is one more product.
DecoderConfig OneBlockOf(DecoderConfig config);

// Values such as weights and activations have.
void FillRandom(DType dtype, std::span<std::byte> to);

// The usual time of `call`: of those within half a second, one at least, behind one that warms up.
// `stop`: true ends it with InterruptedError. The error of a call.
absl::StatusOr<double> MedianSeconds(const std::function<bool()>& stop,
                                     const std::function<absl::Status()>& call);

}  // namespace forebay
