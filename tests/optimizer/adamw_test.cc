// The AdamW kernels: the vector kernel against the reference bit by bit, the reference against
// float64.
#include "forebay/optimizer/adamw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "forebay/tests/optimizer/adamw_fixture.h"
#include "forebay/tests/optimizer/simd_targets.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

struct Variant {
  Layout layout;
  bool gradient_is_bf16;
};

class AdamWKernelTest : public testing::TestWithParam<Variant> {
 protected:
  // Every element that AdamWSimd leaves must be what AdamWRef leaves, on every instruction set.
  void ExpectSimdEqualsRef(const AdamWConfig& config, const AdamWStep& step,
                           const AdamWVectors& start, int64_t first, int64_t num_elems,
                           bool decay) {
    AdamWVectors expected = start;
    AdamWRef(config, step, expected.Tile(first, num_elems, decay));
    ForEachSimdTarget([&] {
      AdamWVectors actual = start;
      AdamWSimd(config, step, actual.Tile(first, num_elems, decay));
      for (int64_t i = 0; i < start.size(); ++i) {
        ASSERT_TRUE(SameFloat(actual.Master(i), expected.Master(i))) << "weight " << i;
        ASSERT_TRUE(SameFloat(actual.m[i], expected.m[i])) << "m " << i;
        ASSERT_TRUE(SameFloat(actual.v[i], expected.v[i])) << "v " << i;
      }
    });
  }

  AdamWVectors Make(int64_t num_elems) const {
    return AdamWVectors(GetParam().layout, GetParam().gradient_is_bf16, num_elems);
  }

  // As in training: weights about 0.02, moments that fit the gradients.
  AdamWVectors MakeNormal(int64_t num_elems) const {
    AdamWVectors vectors = Make(num_elems);
    const CounterRng rng(/*seed=*/7);
    for (int64_t i = 0; i < num_elems; ++i) {
      vectors.SetMaster(i, static_cast<float>(0.02 * rng.Normal(4 * i)));
      vectors.m[i] = static_cast<float>(1e-3 * rng.Normal(4 * i + 1));
      vectors.v[i] = static_cast<float>(1e-6 * std::abs(rng.Normal(4 * i + 2)));
      vectors.SetGradient(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 3)));
    }
    return vectors;
  }

  const AdamWConfig config_{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  const AdamWStep step_{.step = 3, .lr = 1e-3, .gradient_scale = 0.37};
};

TEST_P(AdamWKernelTest, SimdGivesTheBitsOfTheReferenceOnTrainingValues) {
  const AdamWVectors start = MakeNormal(5000);
  ExpectSimdEqualsRef(config_, step_, start, 0, start.size(), /*decay=*/true);
  ExpectSimdEqualsRef(config_, step_, start, 0, start.size(), /*decay=*/false);
}

TEST_P(AdamWKernelTest, SimdUpdatesExactlyTheGivenRangeAtAnyAlignmentAndLength) {
  const AdamWVectors start = MakeNormal(96);
  for (const int64_t first : {0, 1, 3, 8, 17}) {
    for (int64_t num_elems = 0; num_elems <= 67; ++num_elems) {
      SCOPED_TRACE(testing::Message() << "first " << first << ", num_elems " << num_elems);
      ExpectSimdEqualsRef(config_, step_, start, first, num_elems, /*decay=*/true);
    }
  }
}

TEST_P(AdamWKernelTest, SimdGivesTheBitsOfTheReferenceOnExtremeValues) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> extremes = {0.0f,
                                       -0.0f,
                                       Limits::denorm_min(),
                                       -Limits::denorm_min(),
                                       1e-40f,
                                       Limits::min(),
                                       -Limits::min(),
                                       1e-20f,
                                       1.0f,
                                       -1.0f,
                                       1e20f,
                                       -1e20f,
                                       Limits::max(),
                                       Limits::lowest(),
                                       3.4e38f,
                                       Limits::infinity(),
                                       -Limits::infinity(),
                                       Limits::quiet_NaN()};
  const int64_t n = static_cast<int64_t>(extremes.size());
  AdamWVectors start = Make(n * n * n * n);
  for (int64_t i = 0; i < start.size(); ++i) {
    start.SetMaster(i, extremes[i % n]);
    start.m[i] = extremes[i / n % n];
    start.v[i] = std::abs(extremes[i / n / n % n]);
    start.SetGradient(i, extremes[i / n / n / n]);
  }
  ExpectSimdEqualsRef(config_, step_, start, 0, start.size(), /*decay=*/true);
}

TEST_P(AdamWKernelTest, SimdGivesTheBitsOfTheReferenceOnRandomBitPatterns) {
  AdamWVectors start = Make(100'000);
  const CounterRng rng(/*seed=*/11);
  for (int64_t i = 0; i < start.size(); ++i) {
    const auto words = rng.Words(i);
    start.SetMaster(i, BitsAsFloat(words[0]));
    start.m[i] = BitsAsFloat(words[1]);
    start.v[i] = BitsAsFloat(words[2]);
    start.SetGradient(i, BitsAsFloat(words[3]));
  }
  ExpectSimdEqualsRef(config_, step_, start, 0, start.size(), /*decay=*/true);
}

TEST_P(AdamWKernelTest, ElementsThatAreAllZeroStayZero) {
  AdamWVectors vectors = Make(4096);
  AdamWSimd(config_, step_, vectors.Tile(0, vectors.size(), /*decay=*/true));
  for (int64_t i = 0; i < vectors.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(vectors.Master(i)), 0u);
    ASSERT_EQ(std::bit_cast<uint32_t>(vectors.m[i]), 0u);
    ASSERT_EQ(std::bit_cast<uint32_t>(vectors.v[i]), 0u);
  }
}

TEST_P(AdamWKernelTest, WithoutDecayAZeroGradientLeavesTheWeightAsItIs) {
  AdamWVectors vectors = Make(512);
  for (int64_t i = 0; i < vectors.size(); ++i) vectors.SetMaster(i, 0.1f * static_cast<float>(i));
  const AdamWVectors start = vectors;
  AdamWSimd(config_, step_, vectors.Tile(0, vectors.size(), /*decay=*/false));
  for (int64_t i = 0; i < vectors.size(); ++i) ASSERT_EQ(vectors.Master(i), start.Master(i));
  AdamWSimd(config_, step_, vectors.Tile(0, vectors.size(), /*decay=*/true));
  for (int64_t i = 1; i < vectors.size(); ++i) ASSERT_LT(vectors.Master(i), start.Master(i));
}

// AdamW as its paper has it (Loshchilov & Hutter 2019, Algorithm 2), in float64.
struct Float64AdamW {
  double p = 0, m = 0, v = 0;
  void Update(const AdamWConfig& config, const AdamWStep& step, double gradient) {
    const double g = gradient * step.gradient_scale;
    m = config.beta1 * m + (1 - config.beta1) * g;
    v = config.beta2 * v + (1 - config.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(config.beta1, static_cast<double>(step.step)));
    const double v_hat = v / (1 - std::pow(config.beta2, static_cast<double>(step.step)));
    p -= step.lr * (m_hat / (std::sqrt(v_hat) + config.eps) + config.weight_decay * p);
  }
};

// A thousand steps with gradients of very different sizes in one tensor: element i's are about
// 10^(i % 13 - 12), one element in 14 has zeros only, one in 14 denormal gradients.
TEST_P(AdamWKernelTest, AThousandStepsFollowFloat64OverTwelveOrdersOfMagnitude) {
  constexpr int kNumSteps = 1000;
  constexpr int kNumKinds = 15;
  AdamWVectors vectors = Make(kNumKinds * 64);
  std::vector<Float64AdamW> exact(vectors.size());
  const CounterRng rng(/*seed=*/3);
  for (int64_t i = 0; i < vectors.size(); ++i) {
    vectors.SetMaster(i, static_cast<float>(0.02 * rng.Normal(i)));
    exact[i].p = vectors.Master(i);
  }
  const CounterRng gradients(/*seed=*/5);
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    const AdamWStep scalars{.step = step,
                            .lr = 1e-3 * static_cast<double>(kNumSteps + 1 - step) / kNumSteps,
                            .gradient_scale = step % 3 == 0 ? 0.5 : 1.0};
    for (int64_t i = 0; i < vectors.size(); ++i) {
      const int kind = static_cast<int>(i % kNumKinds);
      const double size = kind < 13 ? std::pow(10.0, kind - 12) : kind == 13 ? 0.0 : 1e-40;
      const double noise = 0.3 + gradients.Normal(step * vectors.size() + i);
      vectors.SetGradient(i, static_cast<float>(size * noise));
    }
    AdamWSimd(config_, scalars, vectors.Tile(0, vectors.size(), /*decay=*/true));
    for (int64_t i = 0; i < vectors.size(); ++i) {
      exact[i].Update(config_, scalars, vectors.Gradient(i));
    }
  }
  // Where the tolerances come from (one rounding: 6e-8 relative):
  //   m  averages 10 steps with 3 roundings each: 10 * 3 * 6e-8 of the gradients' size.
  //   v  beta2 rounds to fp32 within 3e-8, which is 3e-5 of 1 - beta2 (torch's has the same error);
  //      its own roundings are random and stay below.
  //   p  moves by at most lr a step, 0.5 in all, so it stays below 0.6 and each of 1000
  //   subtractions
  //      and decays rounds by 3e-8 at most; random signs leave 2 * sqrt(1000) * 3e-8 = 2e-6.
  // Below fp32's normal range (kind 14; v of kinds 0 and 1 in their first steps) precision is
  // absolute: 1.4e-45 a rounding.
  for (int64_t i = 0; i < vectors.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "kind " << i % kNumKinds);
    ASSERT_NEAR(vectors.Master(i), exact[i].p, 2e-6);
    ASSERT_NEAR(vectors.m[i], exact[i].m, 1.8e-6 * std::sqrt(exact[i].v) + 30 * 1.4e-45);
    ASSERT_NEAR(vectors.v[i], exact[i].v, 3e-5 * exact[i].v + 1000 * 1.4e-45);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, AdamWKernelTest,
    testing::Values(Variant{Layout::kBf16, true}, Variant{Layout::kBf16, false},
                    Variant{Layout::kFp32, true}, Variant{Layout::kFp32, false}),
    [](const testing::TestParamInfo<Variant>& variant) {
      return std::string(variant.param.layout == Layout::kBf16 ? "Split" : "Fp32") +
             (variant.param.gradient_is_bf16 ? "WithBf16Gradients" : "WithFp32Gradients");
    });

}  // namespace
}  // namespace forebay
