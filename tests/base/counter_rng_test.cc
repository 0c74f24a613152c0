#include "forebay/base/counter_rng.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;

// The known answers of Random123's kat_vectors for philox4x32-10. Counter words: index (low, high),
// stream (low, high); key words: seed (low, high).
TEST(CounterRng, MatchesTheKnownAnswersOfPhilox) {
  EXPECT_THAT(CounterRng(0, 0).Words(0),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(CounterRng(~uint64_t{0}, ~uint64_t{0}).Words(~uint64_t{0}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(CounterRng(0x299f31d0a4093822u, 0x0370734413198a2eu).Words(0x85a308d3243f6a88u),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(CounterRng, Bits64AreTheFirstTwoWordsLowWordFirst) {
  EXPECT_EQ(CounterRng(0, 0).Bits64(0), 0xe169c58d6627e8d5u);
}

TEST(CounterRng, FillsBytesWithItsWordsWhateverTheirNumber) {
  const CounterRng rng(5, 6);
  std::array<uint32_t, 8> words;
  std::ranges::copy(rng.Words(0), words.begin());
  std::ranges::copy(rng.Words(1), words.begin() + 4);
  for (const size_t size : {0, 1, 16, 27, 32}) {
    std::array<std::byte, 33> bytes = {};
    rng.Fill(std::span(bytes).first(size));
    EXPECT_EQ(std::memcmp(bytes.data(), words.data(), size), 0) << size;
    EXPECT_EQ(bytes[size], std::byte{0}) << size;
  }
}

TEST(CounterRng, SeedsAndStreamsGiveDifferentValues) {
  std::set<uint64_t> values;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t stream = 0; stream < 10; ++stream) {
      values.insert(CounterRng(seed, stream).Bits64(7));
    }
  }
  EXPECT_EQ(values.size(), 100u);
}

TEST(CounterRng, UniformFillsItsInterval) {
  const CounterRng rng(1);
  double sum = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double value = rng.Uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);  // five standard errors
}

TEST(CounterRng, NormalHasMeanZeroVarianceOneAndIsFinite) {
  const CounterRng rng(2);
  double sum = 0;
  double sum_of_squares = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double value = rng.Normal(i);
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    sum_of_squares += value * value;
  }
  EXPECT_NEAR(sum / 100'000, 0.0, 0.016);
  EXPECT_NEAR(sum_of_squares / 100'000, 1.0, 0.023);
}

TEST(CounterRng, BelowReachesEveryValueAndNeverTheBound) {
  const CounterRng rng(3);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1'000; ++i) seen.insert(rng.Below(i, 7));
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(rng.Below(5, 1), 0u);
}

}  // namespace
}  // namespace forebay
