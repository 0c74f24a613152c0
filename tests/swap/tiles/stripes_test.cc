#include "forebay/swap/tiles/stripes.h"

#include <algorithm>
#include <numeric>

#include "forebay/base/counter_rng.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

std::vector<int> Deal(const StripeWeights& weights, const std::vector<int64_t>& sizes) {
  StripeDealer dealer(weights);
  std::vector<int> stripes;
  for (const int64_t size : sizes) stripes.push_back(dealer.Next(size));
  return stripes;
}

TEST(WeightsOfSpeeds, AreRoundedAndSharedByTheFoldersOfOneFileSystem) {
  const std::vector<uint64_t> apart = {1, 2};
  EXPECT_EQ(WeightsOfSpeeds({2.0e9, 1.96e9}, apart), (StripeWeights{1, 1}));
  EXPECT_EQ(WeightsOfSpeeds({2.0e9, 1.0e9}, apart), (StripeWeights{2, 1}));
  EXPECT_EQ(WeightsOfSpeeds({1e9, 1e9, 1e9}, std::vector<uint64_t>{1, 1, 2}),
            (StripeWeights{1, 1, 2}));
  EXPECT_EQ(WeightsOfSpeeds({1e9, 1}, apart), (StripeWeights{100, 1}));
}

TEST(WeightsInProportion, AreTheSmallestWholeNumbers) {
  const auto weights = [](std::vector<double> given) { return WeightsInProportion(given); };
  EXPECT_THAT(weights({1}), ElementsAre(1));
  EXPECT_THAT(weights({250}), ElementsAre(1));
  EXPECT_THAT(weights({2, 1}), ElementsAre(2, 1));
  EXPECT_THAT(weights({1.5, 1, 0.5}), ElementsAre(3, 2, 1));
  EXPECT_THAT(weights({0.001, 1e6}), ElementsAre(1, 1'000'000'000));
}

TEST(StripeDealer, DealsInTurnBetweenEquals) {
  const std::vector<int64_t> sizes(6, 10);
  EXPECT_THAT(Deal({1}, sizes), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Deal({1, 1}, sizes), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Deal({5, 5, 5}, sizes), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(StripeDealer, SpreadsTheSmallerShareEvenly) {
  const std::vector<int64_t> sizes(9, 10);
  EXPECT_THAT(Deal({2, 1}, sizes), ElementsAre(0, 1, 0, 0, 1, 0, 0, 1, 0));
}

// Whoever walks over any part of the tiles finds all stripes at work: in every window of items,
// each stripe has its share but for a few items.
TEST(StripeDealer, GivesEveryStripeItsShareOfEveryWindow) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const CounterRng rng(seed);
    StripeWeights weights;
    for (uint64_t i = 0; i < 1 + rng.Below(0, 5); ++i) {
      weights.push_back(1 + static_cast<int64_t>(rng.Below(1 + i, 20)));
    }
    std::vector<int64_t> sizes;
    for (uint64_t i = 0; i < 400; ++i) {
      sizes.push_back(1 + static_cast<int64_t>(rng.Below(100 + i, 64)));
    }
    const std::vector<int> stripes = Deal(weights, sizes);
    const auto total_weight = static_cast<double>(Total(weights));
    const auto num_stripes = static_cast<double>(weights.size());
    for (size_t begin = 0; begin < sizes.size(); begin += 40) {
      std::vector<double> dealt(weights.size());
      double all = 0;
      for (size_t end = begin; end < sizes.size(); ++end) {
        dealt[stripes[end]] += static_cast<double>(sizes[end]);
        all += static_cast<double>(sizes[end]);
        for (size_t s = 0; s < weights.size(); ++s) {
          const double share = all * static_cast<double>(weights[s]) / total_weight;
          ASSERT_LE(std::abs(dealt[s] - share), 64 * num_stripes)
              << "seed " << seed << " stripe " << s << " items " << begin << " to " << end;
        }
      }
    }
  }
}

// The most by which a stripe is ever off its share, in items of one size.
double MostOffAShare(const StripeWeights& weights, int64_t size, int num_items) {
  StripeDealer dealer(weights);
  std::vector<double> dealt(weights.size());
  const auto total_weight = static_cast<double>(Total(weights));
  double most = 0;
  for (int i = 1; i <= num_items; ++i) {
    dealt[static_cast<size_t>(dealer.Next(size))] += 1;
    for (size_t s = 0; s < weights.size(); ++s) {
      const double share = static_cast<double>(weights[s]) / total_weight;
      most = std::max(most, std::abs(dealt[s] - i * share));
    }
  }
  return most;
}

TEST(StripeDealer, IsNeverMoreThanAnItemAndAHalfOffAShare) {
  for (const int num_stripes : {2, 3, 8, 64}) {
    for (const int64_t large : {1, 2, 10, 100, 1000}) {
      StripeWeights weights(static_cast<size_t>(num_stripes), 1);
      weights[0] = large;
      EXPECT_LT(MostOffAShare(weights, 4096, 2000), 1.5) << num_stripes << " " << large;
    }
  }
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const CounterRng rng(seed);
    StripeWeights weights;
    for (uint64_t i = 0; i < 1 + rng.Below(0, kMaxStripes); ++i) {
      weights.push_back(1 + static_cast<int64_t>(rng.Below(1 + i, seed % 2 == 0 ? 20 : 1000)));
    }
    ASSERT_LT(MostOffAShare(weights, 1 << 20, 500), 1.5) << "seed " << seed;
  }
}

TEST(StripeDealer, HoldsTheProportionOfExtremeWeights) {
  const std::vector<int> stripes = Deal({kMaxStripeWeight, 1}, std::vector<int64_t>(1000, 1 << 20));
  EXPECT_EQ(std::ranges::count(stripes, 1), 0);
  const std::vector<int> tenth = Deal({9, 1}, std::vector<int64_t>(1000, 1 << 20));
  EXPECT_EQ(std::ranges::count(tenth, 1), 100);
}

}  // namespace
}  // namespace forebay
