// The order of rows: a seeded permutation per epoch, a pure function of (seed, number of rows,
// position). A resume needs the position alone.
#pragma once

#include <cstdint>
#include <vector>

namespace forebay {

// Thread-compatible.
class RowSampler {
 public:
  RowSampler(int64_t num_rows, uint64_t seed);
  // The rows of step `step` (from 0) when every step takes `rows_per_step`; the last step of an
  // epoch may have fewer, nothing is dropped and no step spans two epochs.
  std::vector<int64_t> RowsOfStep(int64_t step, int64_t rows_per_step);
  int64_t StepsPerEpoch(int64_t rows_per_step) const;

 private:
  const int64_t num_rows_;
  const uint64_t seed_;
  int64_t epoch_ = -1;  // whose permutation is cached
  std::vector<int64_t> permutation_;
};

}  // namespace forebay
