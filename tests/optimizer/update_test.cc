// The update kernels: the vector kernels against the reference bit by bit, for every optimizer,
// format and instruction set; and their digests, which are the same on every machine.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/tests/optimizer/named_optimizers.h"
#include "forebay/tests/optimizer/run_planes.h"
#include "forebay/tests/optimizer/simd_targets.h"
#include "forebay/tests/optimizer/update_digests.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

const UpdateScalars kScalars = {.step = 3, .lr = 1e-3, .gradient_scale = 0.37, .rounding_seed = 42};

using Case = std::tuple<NamedOptimizer, RunFormat>;

class UpdateKernelTest : public testing::TestWithParam<Case> {
 protected:
  const OptimizerConfig& config() const { return std::get<0>(GetParam()).config; }
  const RunFormat& format() const { return std::get<1>(GetParam()); }
  bool is_int8() const { return format().moments == MomentFormat::kInt8; }

  TileRun RunOf(RunPlanes& planes) const {
    TileRun run = planes.Run();
    run.layer = 5;
    run.weight_decay = 0.1;
    if (!HasFirstMoment(config())) run.m = run.m_scale = nullptr;
    if (!HasSecondMoment(config())) run.v = run.v_scale = nullptr;
    return run;
  }

  // As in training: weights about 0.02, moments that fit the gradients. 8-bit ones come from an
  // update.
  RunPlanes MakeNormal(int64_t num_elems) const {
    RunPlanes planes(format(), num_elems);
    const CounterRng rng(/*seed=*/7);
    for (int64_t i = 0; i < num_elems; ++i) {
      planes.SetMaster(i, static_cast<float>(0.02 * rng.Normal(4 * i)));
      planes.SetMoments(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 1)),
                        static_cast<float>(1e-6 * std::abs(rng.Normal(4 * i + 2))));
      planes.SetGradient(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 3)));
    }
    if (is_int8()) UpdateRunRef(config(), kScalars, RunOf(planes));
    return planes;
  }

  // Every element that UpdateRun leaves must be what UpdateRunRef leaves, on every instruction set.
  void ExpectSimdEqualsRef(const RunPlanes& start, int64_t first, int64_t num_elems) {
    RunPlanes expected = start;
    UpdateRunRef(config(), kScalars, PartOf(RunOf(expected), first, num_elems));
    ForEachSimdTarget([&] {
      RunPlanes actual = start;
      UpdateRun(config(), kScalars, PartOf(RunOf(actual), first, num_elems));
      for (int64_t i = 0; i < start.size(); ++i) {
        ASSERT_TRUE(SameValue(actual.Master(i), expected.Master(i)))
            << "weight " << i << " " << actual.Master(i) << " " << expected.Master(i);
        ASSERT_TRUE(SameValue(actual.M(i), expected.M(i))) << "m " << i;
        ASSERT_TRUE(SameValue(actual.V(i), expected.V(i))) << "v " << i;
        if (!std::isnan(expected.Master(i))) {
          ASSERT_EQ(actual.weight[2 * i], expected.weight[2 * i]) << "weight " << i;
          ASSERT_EQ(actual.weight[2 * i + 1], expected.weight[2 * i + 1]) << "weight " << i;
        }
      }
      ASSERT_EQ(actual.m_scale, expected.m_scale);
      ASSERT_EQ(actual.v_scale, expected.v_scale);
    });
  }
};

TEST_P(UpdateKernelTest, SimdGivesTheBitsOfTheReferenceOnTrainingValues) {
  const RunPlanes start = MakeNormal(5000);
  ExpectSimdEqualsRef(start, 0, start.size());
}

TEST_P(UpdateKernelTest, SimdUpdatesExactlyTheGivenRangeAtAnyAlignmentAndLength) {
  const RunPlanes start = MakeNormal(160);
  const int64_t stride = format().moments == MomentFormat::kFp32 ? 1 : kMomentBlockElems;
  for (const int64_t first : {0, 1, 3, 8, 17}) {
    for (int64_t num_elems = 0; num_elems <= 67; ++num_elems) {
      SCOPED_TRACE(testing::Message() << "first " << first << ", num_elems " << num_elems);
      ExpectSimdEqualsRef(start, first / stride * stride, num_elems);
    }
  }
}

TEST_P(UpdateKernelTest, SimdGivesTheBitsOfTheReferenceOnExtremeValues) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> extremes = {
      0.0f, -0.0f, Limits::denorm_min(), -1e-40f, 1e-40f, 6e-8f, 6e-5f, -1e-20f, 1.0f, -65504.0f};
  // 8-bit codes of what is no number are open.
  if (!is_int8()) {
    extremes.insert(extremes.end(), {65520.0f, 1e20f, Limits::max(), Limits::lowest(),
                                     Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()});
  }
  const int64_t n = static_cast<int64_t>(extremes.size());
  RunPlanes start(format(), n * n * n);
  for (int64_t i = 0; i < start.size(); ++i) {
    start.SetMaster(i, extremes[i % n]);
    start.SetMoments(i, extremes[i / n % n], std::abs(extremes[(i + i / n) % n]));
    start.SetGradient(i, extremes[i / n / n]);
  }
  if (is_int8()) {
    const CounterRng rng(/*seed=*/9);
    for (int64_t i = 0; i < start.size(); ++i) {
      start.m[i] = static_cast<std::byte>(rng.Words(i)[0]);
      start.v[i] = static_cast<std::byte>(rng.Words(i)[1]);
      start.m_scale[i / kMomentBlockElems] = FloatToBf16(extremes[i / kMomentBlockElems % n]);
      start.v_scale[i / kMomentBlockElems] =
          FloatToBf16(std::abs(extremes[i / kMomentBlockElems / n % n]));
    }
  }
  ExpectSimdEqualsRef(start, 0, start.size());
}

// The NaN of a gradient that a GPU made: rounded as a number, 0x7fffffff becomes -0.0. One element
// is updated by vectors, one is in the rest after them; with moments of 8 bits it is a whole block.
TEST_P(UpdateKernelTest, WhatIsNoNumberIsNoneInAnyPlane) {
  RunFormat format_of_gpu = format();
  format_of_gpu.gradient_dtype = DType::kF32;
  ForEachSimdTarget([&] {
    RunPlanes planes(format_of_gpu, 2 * kMomentBlockElems + 5);
    const int64_t last = planes.size() - 1;
    for (int64_t i = 0; i < planes.size(); ++i) {
      planes.SetMaster(i, 1.0f);
      planes.SetGradient(i, i == 7 || i == last ? std::bit_cast<float>(0x7fffffffu) : 1e-3f);
    }
    UpdateRun(config(), kScalars, RunOf(planes));
    for (const int64_t i : {int64_t{7}, last}) {
      if (config().kind != OptimizerKind::kLion) {  // which takes the sign, and NaN has none
        EXPECT_TRUE(std::isnan(planes.Weight(i))) << i;
        EXPECT_TRUE(std::isnan(planes.Master(i))) << i;
      }
      EXPECT_EQ(std::isnan(planes.M(i)), HasFirstMoment(config())) << i;
      EXPECT_EQ(std::isnan(planes.V(i)), HasSecondMoment(config())) << i;
    }
    const int64_t other = kMomentBlockElems + 3;
    EXPECT_TRUE(std::isfinite(planes.Weight(other)) && std::isfinite(planes.M(other)));
  });
}

TEST_P(UpdateKernelTest, ElementsThatAreAllZeroStayZero) {
  RunPlanes planes(format(), 4096);
  for (UpdateScalars scalars = kScalars; scalars.step < 20; ++scalars.step) {
    UpdateRun(config(), scalars, RunOf(planes));
  }
  EXPECT_EQ(planes.Digest(), RunPlanes(format(), 4096).Digest());
}

// The same values whatever the pieces that a run is updated in.
TEST_P(UpdateKernelTest, PiecesGiveWhatTheWholeGives) {
  RunPlanes whole = MakeNormal(4096);
  RunPlanes pieces = whole;
  UpdateRun(config(), kScalars, RunOf(whole));
  for (int64_t first = 0; first < 4096; first += 96) {
    UpdateRun(config(), kScalars,
              PartOf(RunOf(pieces), first, std::min<int64_t>(96, 4096 - first)));
  }
  EXPECT_EQ(pieces.Digest(), whole.Digest());
}

// ---- What the reference computes, in float64, as the sources of update_rule.h have it.

struct Exact {
  double p = 0, m = 0, v = 0;
  void Update(const OptimizerConfig& config, const UpdateScalars& scalars, double weight_decay,
              double gradient) {
    double g = gradient * scalars.gradient_scale;
    const double t = static_cast<double>(scalars.step);
    const bool decoupled =
        config.kind == OptimizerKind::kAdamW || config.kind == OptimizerKind::kLion;
    if (!decoupled) g += weight_decay * p;
    switch (config.kind) {
      case OptimizerKind::kAdamW:
      case OptimizerKind::kAdam: {
        m = config.beta1 * m + (1 - config.beta1) * g;
        v = config.beta2 * v + (1 - config.beta2) * g * g;
        const double m_hat = m / (1 - std::pow(config.beta1, t));
        const double v_hat = v / (1 - std::pow(config.beta2, t));
        if (decoupled) p -= scalars.lr * weight_decay * p;
        p -= scalars.lr * m_hat / (std::sqrt(v_hat) + config.eps);
        return;
      }
      case OptimizerKind::kAdagrad:
        v += g * g;
        p -= scalars.lr * g / (std::sqrt(v) + config.eps);
        return;
      case OptimizerKind::kLion: {
        const double c = config.beta1 * m + (1 - config.beta1) * g;
        p -= scalars.lr * (weight_decay * p + (c > 0 ? 1 : c < 0 ? -1 : 0));
        m = config.beta2 * m + (1 - config.beta2) * g;
        return;
      }
      case OptimizerKind::kSgd:
        if (config.momentum != 0) {
          m = config.momentum * m + g;
          g = config.nesterov ? g + config.momentum * m : m;
        }
        p -= scalars.lr * g;
    }
  }
};

// A hundred steps on gradients about 1e-3. Exact formats differ from float64 by their roundings
// alone; 16-bit moments by 2^-8 of a moment's size, 8-bit ones by 1/127 of their block's largest.
TEST_P(UpdateKernelTest, AHundredStepsFollowFloat64) {
  constexpr int64_t kNumElems = 256;
  RunPlanes planes(format(), kNumElems);
  std::vector<Exact> exact(kNumElems);
  const CounterRng rng(/*seed=*/3);
  for (int64_t i = 0; i < kNumElems; ++i) {
    planes.SetMaster(i, static_cast<float>(0.02 * rng.Normal(i)));
    exact[i].p = planes.Master(i);
  }
  double moved = 0;
  double wrong = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    const UpdateScalars scalars = {.step = step, .lr = 1e-3, .gradient_scale = 0.5};
    for (int64_t i = 0; i < kNumElems; ++i) {
      planes.SetGradient(i, static_cast<float>(1e-3 * (0.5 + rng.Normal(step * 1000 + i))));
    }
    UpdateRun(config(), scalars, RunOf(planes));
    for (int64_t i = 0; i < kNumElems; ++i) {
      exact[i].Update(config(), scalars, /*weight_decay=*/0.1, planes.Gradient(i));
    }
  }
  for (int64_t i = 0; i < kNumElems; ++i) {
    const double start = static_cast<float>(0.02 * rng.Normal(i));
    moved += std::abs(exact[i].p - start);
    wrong += std::abs(planes.Master(i) - exact[i].p);
  }
  // A sign of Lion that falls the other way is a whole step, so few may.
  const double most = format().moments == MomentFormat::kFp32   ? 1e-4
                      : config().kind == OptimizerKind::kLion   ? 0.03
                      : format().moments == MomentFormat::kBf16 ? 0.003
                                                                : 0.03;
  EXPECT_LT(wrong, most * moved);
  EXPECT_GT(moved, 0);
}

class ExactAdamWTest : public testing::TestWithParam<RunFormat> {};

// A thousand steps with gradients of very different sizes in one tensor: element i's are about
// 10^(i % 13 - 12), one element in 15 has zeros only, one in 15 denormal gradients.
TEST_P(ExactAdamWTest, AThousandStepsFollowFloat64OverTwelveOrdersOfMagnitude) {
  constexpr int kNumSteps = 1000;
  constexpr int kNumKinds = 15;
  const OptimizerConfig config;
  RunPlanes planes(GetParam(), kNumKinds * 64);
  TileRun run = planes.Run();
  run.weight_decay = 0.1;
  std::vector<Exact> exact(planes.size());
  const CounterRng rng(/*seed=*/3);
  for (int64_t i = 0; i < planes.size(); ++i) {
    planes.SetMaster(i, static_cast<float>(0.02 * rng.Normal(i)));
    exact[i].p = planes.Master(i);
  }
  const CounterRng gradients(/*seed=*/5);
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    const UpdateScalars scalars{.step = step,
                                .lr = 1e-3 * static_cast<double>(kNumSteps + 1 - step) / kNumSteps,
                                .gradient_scale = step % 3 == 0 ? 0.5 : 1.0};
    for (int64_t i = 0; i < planes.size(); ++i) {
      const int kind = static_cast<int>(i % kNumKinds);
      const double size = kind < 13 ? std::pow(10.0, kind - 12) : kind == 13 ? 0.0 : 1e-40;
      const double noise = 0.3 + gradients.Normal(step * planes.size() + i);
      planes.SetGradient(i, static_cast<float>(size * noise));
    }
    UpdateRun(config, scalars, run);
    for (int64_t i = 0; i < planes.size(); ++i) {
      exact[i].Update(config, scalars, run.weight_decay, planes.Gradient(i));
    }
  }
  // Where the tolerances come from (one rounding: 6e-8 relative):
  //   m  averages 10 steps with 3 roundings each: 10 * 3 * 6e-8 of the gradients' size.
  //   v  beta2 rounds to fp32 within 3e-8, which is 3e-5 of 1 - beta2 (torch's has the same error);
  //      its own roundings are random and stay below.
  //   p  moves by at most lr a step, 0.5 in all, so it stays below 0.6 and each of 1000
  //      subtractions and decays rounds by 3e-8 at most; random signs leave 2 * sqrt(1000) * 3e-8 =
  //      2e-6.
  // Below fp32's normal range (kind 14; v of kinds 0 and 1 in their first steps) precision is
  // absolute: 1.4e-45 a rounding.
  for (int64_t i = 0; i < planes.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "kind " << i % kNumKinds);
    ASSERT_NEAR(planes.Master(i), exact[i].p, 2e-6);
    ASSERT_NEAR(planes.M(i), exact[i].m, 1.8e-6 * std::sqrt(exact[i].v) + 30 * 1.4e-45);
    ASSERT_NEAR(planes.V(i), exact[i].v, 3e-5 * exact[i].v + 1000 * 1.4e-45);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ExactAdamWTest,
    testing::Values(RunFormat{}, RunFormat{.gradient_dtype = DType::kF32},
                    RunFormat{.weights = WeightFormat::kFp32},
                    RunFormat{.weights = WeightFormat::kFp32, .gradient_dtype = DType::kF32},
                    RunFormat{.weights = WeightFormat::kFp16, .gradient_dtype = DType::kF32}),
    [](const testing::TestParamInfo<RunFormat>& test) { return NameOf(test.param); });

// Masters that an update leaves as they are come back from the bf16 layout bit by bit, with w16 =
// (bits + 0x8000) >> 16. Patterns 0, stride, 2 * stride, ... of all 2^32, on every instruction set.
void ExpectMastersComeBack(uint64_t stride) {
  constexpr int64_t kNumElems = int64_t{1} << 20;
  constexpr uint64_t kNumPatterns = uint64_t{1} << 32;
  RunPlanes planes({}, kNumElems);
  auto* const w16 = reinterpret_cast<uint16_t*>(planes.weight.data());
  const auto bits_at = [&](uint64_t first, int64_t i) {
    return static_cast<uint32_t>(first + static_cast<uint64_t>(i) * stride);
  };
  const auto is_kept = [&](uint32_t bits, int64_t i) {
    const auto high = static_cast<uint16_t>((bits + 0x8000u) >> 16);
    return w16[i] == high && planes.remainder[i] == static_cast<int16_t>(bits - (high << 16));
  };
  ForEachSimdTarget([&] {
    for (uint64_t first = 0; first < kNumPatterns; first += kNumElems * stride) {
      for (int64_t i = 0; i < kNumElems; ++i) {
        planes.SetMaster(i, std::bit_cast<float>(bits_at(first, i)));
      }
      UpdateRun({}, {.step = 1, .lr = 0}, planes.Run());
      for (int64_t i = 0; i < kNumElems; ++i) {
        const uint32_t bits = bits_at(first, i);
        const bool is_nan =
            (bits & 0x7fffffffu) > 0x7f800000u;  // of which arithmetic makes another
        ASSERT_TRUE(is_nan ? std::isnan(planes.Master(i)) : is_kept(bits, i)) << std::hex << bits;
      }
    }
  });
}

TEST(SplitWeights, GiveASampleOfAllMastersBack) {
  ExpectMastersComeBack(4093);
}

TEST(SplitWeights, GiveMastersBackExhaustively) {
  ExpectMastersComeBack(1);
}

// With beta2 = 0.999 a second moment decays by less than half a code or half a bf16 a step: rounded
// to nearest it would stay where it is for ever.
TEST(LossyMoments, OfASquareDecayWhenGradientsDo) {
  for (const MomentFormat moments : {MomentFormat::kBf16, MomentFormat::kInt8}) {
    RunPlanes planes({.moments = moments, .gradient_dtype = DType::kF32}, 256);
    TileRun run = planes.Run();
    const OptimizerConfig config;
    double exact = 0;
    double most_wrong = 0;
    for (int64_t step = 1; step <= 3000; ++step) {
      const float gradient = step <= 200 ? 1e-3f : 1e-4f;
      for (int64_t i = 0; i < 256; ++i) planes.SetGradient(i, gradient);
      UpdateRun(config, {.step = step, .lr = 1e-9, .rounding_seed = 1}, run);
      exact = 0.999 * exact + 0.001 * gradient * gradient;
      if (step % 100 != 0) continue;
      double mean = 0;
      for (int64_t i = 0; i < 256; ++i) mean += planes.V(i) / 256;
      most_wrong = std::max(most_wrong, std::abs(mean - exact) / exact);
    }
    EXPECT_LT(exact, 1e-7);
    EXPECT_LT(most_wrong, 0.05) << "moments " << static_cast<int>(moments);
  }
}

TEST(LossyMoments, OfASquareAreNeverZeroWhereTheyAreNotAndZeroWhereTheyAre) {
  RunPlanes planes({.moments = MomentFormat::kInt8, .gradient_dtype = DType::kF32}, 64);
  for (int64_t i = 0; i < 64; ++i) planes.SetGradient(i, i == 0 ? 1.0f : i % 2 == 0 ? 1e-8f : 0.0f);
  UpdateRun({}, kScalars, planes.Run());
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(planes.V(i) > 0, i % 2 == 0) << i;
    EXPECT_TRUE(planes.M(i) == 0 || planes.V(i) > 0) << i;
  }
}

// Rounding is a matter of seed, layer, step and element, not of where the run begins.
TEST(LossyMoments, AreRoundedByWhatTheElementIs) {
  for (const MomentFormat moments : {MomentFormat::kBf16, MomentFormat::kInt8}) {
    // No weight moves, so that of all that differs the rounding alone shows.
    const auto digest = [&](uint64_t seed, int layer, int64_t first_elem, int64_t step) {
      RunPlanes planes({.moments = moments, .gradient_dtype = DType::kF32}, 256);
      for (int64_t i = 0; i < 256; ++i) planes.SetGradient(i, i % 2 == 0 ? 1e-3f : 0.7e-3f);
      TileRun run = planes.Run();
      run.layer = layer;
      run.first_elem = first_elem;
      UpdateRun({}, {.step = step, .lr = 0, .rounding_seed = seed}, run);
      return planes.Digest();
    };
    const std::string one = digest(1, 2, 32, 3);
    EXPECT_EQ(digest(1, 2, 32, 3), one);
    EXPECT_NE(digest(2, 2, 32, 3), one);
    EXPECT_NE(digest(1, 3, 32, 3), one);
    EXPECT_NE(digest(1, 2, 64, 3), one);
    EXPECT_NE(digest(1, 2, 32, 4), one);
  }
}

// Up as often as the value is above what it is rounded down to, over elements and over steps.
TEST(LossyMoments, AreRoundedWithoutBias) {
  constexpr int64_t kNumElems = 4096;
  for (const MomentFormat moments : {MomentFormat::kBf16, MomentFormat::kInt8}) {
    RunPlanes planes({.moments = moments, .gradient_dtype = DType::kF32}, kNumElems);
    // 1 in each block, so that the codes of the others are between those of the scale.
    const auto value_at = [](int64_t i) {
      return i % kMomentBlockElems == 0 ? 1.0f : 0.3f + 0.001f * static_cast<float>(i % 97);
    };
    double m_bias = 0, v_bias = 0, ulp = 0;
    for (int64_t step = 1; step <= 16; ++step) {
      RunPlanes fresh = planes;
      for (int64_t i = 0; i < kNumElems; ++i) fresh.SetGradient(i, value_at(i));
      UpdateRun({}, {.step = step, .lr = 0, .rounding_seed = 3}, fresh.Run());
      for (int64_t i = 0; i < kNumElems; ++i) {
        const double g = value_at(i);
        m_bias += (fresh.M(i) - 0.1 * g) / 0.1;
        v_bias += (std::sqrt(fresh.V(i)) - std::sqrt(0.001) * g) / std::sqrt(0.001);
      }
    }
    ulp = moments == MomentFormat::kBf16 ? 0x1p-9 : 1.0 / 255;
    EXPECT_LT(std::abs(m_bias), 0.01 * ulp * 16 * kNumElems) << static_cast<int>(moments);
    EXPECT_LT(std::abs(v_bias), 0.01 * ulp * 16 * kNumElems) << static_cast<int>(moments);
  }
}

class UpdateDigestTest : public UpdateKernelTest {};

// What twenty steps leave, on every CPU. When a formula or a format changes on purpose, paste what
// this prints.
TEST_P(UpdateDigestTest, IsTheStoredOne) {
  RunPlanes planes(format(), 2048);
  const CounterRng rng(/*seed=*/21);
  // From -1 to 1; without functions of the C library, whose last bits differ between versions.
  const auto uniform = [&](int64_t i) {
    return static_cast<float>(static_cast<int32_t>(rng.Words(i)[0])) * 0x1p-31f;
  };
  for (int64_t i = 0; i < planes.size(); ++i) planes.SetMaster(i, 0.02f * uniform(i));
  UpdateScalars scalars = kScalars;
  for (scalars.step = 1; scalars.step <= 20; ++scalars.step) {
    for (int64_t i = 0; i < planes.size(); ++i) {
      planes.SetGradient(i, 1e-3f * uniform(scalars.step * 4096 + i));
    }
    UpdateRun(config(), scalars, RunOf(planes));
  }
  const std::string name = std::get<0>(GetParam()).name + NameOf(format());
  const auto stored = StoredDigests().find(name);
  EXPECT_TRUE(stored != StoredDigests().end() && stored->second == planes.Digest())
      << "    {\"" << name << "\", \"" << planes.Digest() << "\"},";
}

TEST(UpdateDeathTest, ARunThatKernelsDoNotSupportIsABug) {
  const auto update = [](const RunFormat& format, const std::function<void(TileRun&)>& change) {
    RunPlanes planes(format, 64);
    TileRun run = planes.Run();
    change(run);
    UpdateRun({}, kScalars, run);
  };
  EXPECT_DEATH(update({}, [](TileRun& run) { run.m = nullptr; }), "run.m");
  EXPECT_DEATH(update({}, [](TileRun& run) { run.v = nullptr; }), "run.v");
  const RunFormat short_moments = {.moments = MomentFormat::kBf16};
  EXPECT_DEATH(update(short_moments, [](TileRun& run) { run.first_elem = 8; }), "first_elem");
  EXPECT_DEATH(update(short_moments, [](TileRun& run) { run.weights = WeightFormat::kFp32; }),
               "weights");
}

INSTANTIATE_TEST_SUITE_P(
    All, UpdateDigestTest,
    testing::Combine(testing::ValuesIn(kOptimizers),
                     testing::Values(RunFormat{}, RunFormat{.weights = WeightFormat::kFp16},
                                     RunFormat{.weights = WeightFormat::kFp32},
                                     RunFormat{.moments = MomentFormat::kBf16},
                                     RunFormat{.moments = MomentFormat::kInt8})),
    [](const testing::TestParamInfo<Case>& test) {
      return std::get<0>(test.param).name + NameOf(std::get<1>(test.param));
    });

INSTANTIATE_TEST_SUITE_P(All, UpdateKernelTest,
                         testing::Combine(testing::ValuesIn(kOptimizers),
                                          testing::ValuesIn(AllRunFormats())),
                         [](const testing::TestParamInfo<Case>& test) {
                           return std::get<0>(test.param).name + NameOf(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace forebay
