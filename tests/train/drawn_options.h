// Options of training runs that are drawn: the same for the same numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "forebay/base/counter_rng.h"
#include "forebay/train/options/options.h"

namespace forebay {

class Draw {
 public:
  Draw(uint64_t seed, uint64_t number) : random_(seed, number) {}
  int64_t Between(int64_t least, int64_t most) {
    return least +
           static_cast<int64_t>(random_.Below(next_++, static_cast<uint64_t>(most - least + 1)));
  }
  bool OneIn(int64_t count) { return Between(1, count) == 1; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Between(0, std::ssize(values) - 1));
  }

 private:
  const CounterRng random_;
  uint64_t next_ = 0;
};

// Whether --set=number_checkpoints goes with the rest of `options`.
inline bool MayHaveSegments(const TrainOptions& options) {
  return options.recompute.value_or(Recompute::kAll) == Recompute::kAll &&
         options.recompute_layers == 0 && options.activations_tier != ActivationsTier::kNvme;
}

}  // namespace forebay
