// Measures how fast this machine's CPU and RAM do what a step asks of them, with the step's own
// code: a turn of each, of a second or less where blocks are not large.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/aio/speed_probe.h"
#include "forebay/model/decoder_config.h"
#include "forebay/train/options/options.h"
#include "forebay/train/speeds/measured_block.h"

namespace forebay {

// In each: `stop`: true ends it with InterruptedError. OutOfMemoryError.

MeasuredTokens TokensOnCpu(const TrainOptions& options);

// Operations per second of one block of the model, forward, recomputed and backward. Takes the
// memory of one block and its workspace.
absl::StatusOr<double> MeasureBlock(const DecoderConfig& model, const TrainOptions& options,
                                    int num_threads, const std::function<bool()>& stop);

// Bytes per second that an update of the layout reads and writes of RAM. Takes 0.4 GB.
absl::StatusOr<double> MeasureUpdate(const TrainOptions& options, int num_threads,
                                     const std::function<bool()>& stop);

// The speed of the disk under `folder`, in turns of reads and writes (aio/speed_probe.h): some
// 0.5 GB are written. StorageError too.
absl::StatusOr<DiskSpeed> MeasureDisk(const TrainOptions& options, const std::string& folder,
                                      const std::function<bool()>& stop);

}  // namespace forebay
