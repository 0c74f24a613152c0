#include "forebay/model/rope.h"

#include <algorithm>
#include <span>

#include "gmock/gmock.h"
#include "rope_reference.h"

namespace forebay {
namespace {

constexpr int64_t kHeadDim = 32;

// One unit in the last place of an angle is up to 6e-5 at position 1000, and that is what a cosine
// may differ by.
void ExpectAsTransformers(const RopeConfig& config, const RopeReference& reference) {
  const RopeFrequencies frequencies = ComputeRopeFrequencies(config, kHeadDim, 1001);
  EXPECT_FLOAT_EQ(frequencies.attention_factor, reference.attention_factor);
  const RopeTables tables = BuildRopeTables(config, kHeadDim, 131072, 1001);
  ASSERT_EQ(frequencies.inv_freq.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    SCOPED_TRACE(i);
    EXPECT_NEAR(frequencies.inv_freq[i], reference.inv_freq[i], 2e-7f * reference.inv_freq[i]);
    EXPECT_NEAR(tables.cos[1000 * 16 + i], reference.cos_at_1000[i], 1.3e-4f);
    EXPECT_NEAR(tables.sin[7 * 16 + i], reference.sin_at_7[i], 1e-6f);
  }
}

TEST(Rope, PlainFrequenciesEqualTransformers) {
  RopeConfig config;
  config.theta = 100000.0;
  ExpectAsTransformers(config, kDefaultRope);
}

TEST(Rope, LinearScalingEqualsTransformers) {
  RopeConfig config;
  config.scaling = RopeScaling::kLinear;
  config.factor = 4;
  ExpectAsTransformers(config, kLinearRope);
}

TEST(Rope, Llama3ScalingEqualsTransformers) {
  RopeConfig config;
  config.theta = 500000.0;
  config.scaling = RopeScaling::kLlama3;
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_positions = 8192;
  ExpectAsTransformers(config, kLlama3Rope);
}

TEST(Rope, YarnScalingEqualsTransformers) {
  RopeConfig config;
  config.theta = 1000000.0;
  config.scaling = RopeScaling::kYarn;
  config.factor = 4;
  config.original_max_positions = 32768;
  ExpectAsTransformers(config, kYarnRope);
}

TEST(Rope, YarnWithMscaleAndWithoutTruncationEqualsTransformers) {
  RopeConfig config;
  config.scaling = RopeScaling::kYarn;
  config.factor = 40;
  config.original_max_positions = 4096;
  config.beta_fast = 16;
  config.beta_slow = 2;
  config.mscale = 0.707;
  config.mscale_all_dim = 1.2;
  config.truncate = false;
  ExpectAsTransformers(config, kYarnWithMscaleRope);
}

TEST(Rope, AnExplicitAttentionFactorReplacesTheComputedOne) {
  RopeConfig config;
  config.scaling = RopeScaling::kYarn;
  config.factor = 4;
  config.original_max_positions = 4096;
  config.attention_factor = 1.5;
  EXPECT_FLOAT_EQ(ComputeRopeFrequencies(config, kHeadDim, 1).attention_factor, 1.5f);
  config.scaling = RopeScaling::kLongRope;
  config.short_factors = config.long_factors = std::vector<double>(kHeadDim / 2, 1.0);
  EXPECT_FLOAT_EQ(ComputeRopeFrequencies(config, kHeadDim, 1).attention_factor, 1.5f);
}

RopeConfig LongRope(int64_t original_max_positions) {
  RopeConfig config;
  config.scaling = RopeScaling::kLongRope;
  config.original_max_positions = original_max_positions;
  config.factor = 131072.0 / static_cast<double>(original_max_positions);
  for (int i = 0; i < kHeadDim / 2; ++i) {
    config.short_factors.push_back(1 + i / 16.0);
    config.long_factors.push_back(1 + i / 2.0);
  }
  return config;
}

TEST(Rope, LongRopeHasOtherFrequenciesForLongSequencesAsInTransformers) {
  ExpectAsTransformers(LongRope(4096), kShortLongRopeRope);
  ExpectAsTransformers(LongRope(1000), kLongLongRopeRope);
}

TEST(Rope, DynamicScalingChangesNothingUpToTheModelsPositionsAsInTransformers) {
  ExpectAsTransformers(RopeConfig{}, kDynamicRope);
}

TEST(Rope, ProportionalScalingTurnsTheFirstPairsAloneAsInTransformers) {
  RopeConfig config;
  config.scaling = RopeScaling::kProportional;
  config.factor = 2;
  config.rotated_share = 0.3;
  ExpectAsTransformers(config, kProportionalRope);
}

TEST(Rope, SequencesOfEveryLengthFindTheirRowInOneTable) {
  constexpr int64_t kMost = 9;
  for (const RopeConfig& config : {RopeConfig{}, LongRope(4), LongRope(9)}) {
    const auto num_elems = static_cast<size_t>(NumRopeRows(config, kMost) * kHeadDim / 2);
    std::vector<float> cos(num_elems), sin(num_elems);
    FillRopeRows(config, kHeadDim, kMost, cos, sin);
    for (int64_t length = 1; length <= kMost; ++length) {
      const RopeTables own = BuildRopeTables(config, kHeadDim, kMost, length);
      const auto first = static_cast<size_t>(FirstRopeRow(config, length) * kHeadDim / 2);
      ASSERT_LE(first + own.cos.size(), num_elems);
      EXPECT_TRUE(std::ranges::equal(own.cos, std::span(cos).subspan(first, own.cos.size())));
      EXPECT_TRUE(std::ranges::equal(own.sin, std::span(sin).subspan(first, own.sin.size())));
    }
  }
}

TEST(Rope, TheFirstPositionIsNotTurned) {
  const RopeTables tables = BuildRopeTables(RopeConfig{}, kHeadDim, 8, 2);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(tables.cos[i], 1.0f);
    EXPECT_EQ(tables.sin[i], 0.0f);
  }
}

TEST(Rope, AShorterTableIsAPrefixOfALongerOne) {
  const RopeTables shorter = BuildRopeTables(RopeConfig{}, kHeadDim, 64, 5);
  RopeTables longer = BuildRopeTables(RopeConfig{}, kHeadDim, 64, 64);
  longer.cos.resize(shorter.cos.size());
  longer.sin.resize(shorter.sin.size());
  EXPECT_EQ(longer.cos, shorter.cos);
  EXPECT_EQ(longer.sin, shorter.sin);
}

}  // namespace
}  // namespace forebay
