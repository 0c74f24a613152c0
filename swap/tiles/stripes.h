// Which folder of a store holds which tile. Pure.
//
// A store may lie in several folders, normally one for each disk. Each is a stripe: it has its
// share of the tiles, in proportion to its weight, and a tile lies in one stripe with all that
// belongs to it (both slots of its weights and of its state, and its gradient where that waits on
// disk).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace forebay {

inline constexpr int kMaxStripes = 64;
inline constexpr int64_t kMaxStripeWeight = 1'000'000'000;

// By stripe: how much of the load it gets, in proportion to the others.
using StripeWeights = std::vector<int64_t>;
// By stripe: bytes of something.
using StripeBytes = std::vector<int64_t>;

int64_t Total(std::span<const int64_t> bytes);

// Whole numbers without a common factor in the proportion of `weights`, to a thousandth: 1.5 and 1
// become 3 and 2. Requires: 1 to kMaxStripes weights, each from 0.001 to 1e6.
StripeWeights WeightsInProportion(std::span<const double> weights);

// Percent of the fastest, and rounded, so that what a measurement happened to find does not show:
// disks within a few percent of one another are the same. `bytes_per_s`: by folder, of which those
// on one file system (an equal entry in `file_systems`) share its speed. Requires: speeds above 0.
StripeWeights WeightsOfSpeeds(std::vector<double> bytes_per_s,
                              std::span<const uint64_t> file_systems);

// Deals items out one after another, each to the stripe that would without it lag most behind its
// share of all bytes so far. Whoever walks through the items, forwards or backwards, keeps all
// stripes busy: with items of one size every stripe is at every moment within one and a half items
// of its share, whatever the weights (no more was found for any of 2 to 64 stripes; a test looks).
// Thread-compatible.
class StripeDealer {
 public:
  // Requires: 1 to kMaxStripes weights from 1 to kMaxStripeWeight.
  explicit StripeDealer(StripeWeights weights);
  // The stripe of the next item. Requires: `size` > 0; sizes add up to less than 2^62.
  int Next(int64_t size);

 private:
  const StripeWeights weights_;
  int64_t total_weight_ = 0;
  std::vector<int64_t> dealt_;
  int64_t all_dealt_ = 0;
};

}  // namespace forebay
