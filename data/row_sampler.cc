#include "forebay/data/row_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"

namespace forebay {

RowSampler::RowSampler(int64_t num_rows, uint64_t seed) : num_rows_(num_rows), seed_(seed) {
  FOREBAY_CHECK(num_rows > 0);
}

int64_t RowSampler::StepsPerEpoch(int64_t rows_per_step) const {
  FOREBAY_CHECK(rows_per_step > 0);
  return (num_rows_ - 1) / rows_per_step + 1;
}

std::vector<int64_t> RowSampler::RowsOfStep(int64_t step, int64_t rows_per_step) {
  FOREBAY_CHECK(step >= 0);
  const int64_t steps_per_epoch = StepsPerEpoch(rows_per_step);
  const int64_t epoch = step / steps_per_epoch;
  if (epoch != epoch_) {
    // Fisher and Yates. The epoch is the random stream, so any epoch can be made without those
    // before it.
    const CounterRng rng(seed_, static_cast<uint64_t>(epoch));
    permutation_.resize(static_cast<size_t>(num_rows_));
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    for (uint64_t i = permutation_.size() - 1; i > 0; --i) {
      std::swap(permutation_[i], permutation_[rng.Below(i, i + 1)]);
    }
    epoch_ = epoch;
  }
  const int64_t first = step % steps_per_epoch * rows_per_step;
  const int64_t last = first + std::min(rows_per_step, num_rows_ - first);
  return {permutation_.begin() + first, permutation_.begin() + last};
}

}  // namespace forebay
