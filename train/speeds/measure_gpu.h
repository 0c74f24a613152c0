// Measures how fast a GPU of this machine does what a step asks of it, with the step's own code: a
// few seconds.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "forebay/model/decoder_config.h"
#include "forebay/train/options/options.h"
#include "forebay/train/speeds/measured_block.h"

namespace forebay {

// The GPU is the one of `options`. In each: `stop`: true ends it with InterruptedError.
// EnvironmentError: there is none, or it fails; OutOfMemoryError.

MeasuredTokens TokensOnGpu(const TrainOptions& options);

// Operations per second of one block of the model and of a small head, forward, recomputed and
// backward, by the algorithms that a run would choose. Takes their memory on the GPU, and as much
// of RAM as the weights of one block.
absl::StatusOr<double> MeasureGpuBlock(const DecoderConfig& model, const TrainOptions& options,
                                       const std::function<bool()>& stop);

// Bytes per second between RAM and the GPU, in the slower direction of two that go on at once.
// Takes 128 MiB of both.
absl::StatusOr<double> MeasureBus(const TrainOptions& options, const std::function<bool()>& stop);

}  // namespace forebay
