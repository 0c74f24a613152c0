// The micro-batches of a step: the rows of a seeded order, of which each rank, or each part of one
// process (--data_parallel), computes its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/data/micro_batch.h"
#include "forebay/data/packed_file.h"
#include "forebay/data/row_sampler.h"

namespace forebay {

class StepBatches {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t batch = 1;  // rows of a micro-batch, of all parts
    int64_t accum = 1;  // micro-batches of a step
    int num_parts = 1;  // that they are divided into
    // Those that are read here: of a rank its own, else all.
    int first_part = 0;
    int num_own_parts = 1;
  };
  // `data` outlives it.
  StepBatches(const PackedFile* data, const Options& options);

  // Of step `step`, from 1 on, part after part; MicroBatch::part counts from the first that is read
  // here. The memory is reused by the next call. Errors of PackedFile::ReadRows.
  absl::StatusOr<std::span<const MicroBatch>> Read(int64_t step);

 private:
  absl::Status ReadPart(std::span<const int64_t> rows, int own_part);
  absl::StatusOr<MicroBatch*> ReadBatch(std::span<const int64_t> rows, int own_part);

  const PackedFile* const data_;
  const Options options_;
  RowSampler sampler_;
  std::vector<MicroBatch> batches_;
  size_t num_batches_ = 0;
};

}  // namespace forebay
