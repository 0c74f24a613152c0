#include "forebay/train/run/autotune_search.h"

#include <cmath>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr TunedSettings kStart = {
    .batch = 4, .accum = 4, .threads = 8, .update_threads = 8, .tile_elems = 1 << 20};

TuneLimits Limits() {
  return {.max_threads = 8, .max_trials = 100, .tile_granularity = 2048};
}

// How far `value` is from `best`, in steps of two.
double Steps(double value, double best) {
  return std::abs(std::log2(value / best));
}

TEST(AutotuneSearch, FindsTheBestOfEachSettingInEitherDirection) {
  for (const int64_t batch : {1, 4, 16}) {
    for (const int threads : {2, 8}) {
      for (const int64_t tile : {256 << 10, 1 << 20, 4 << 20}) {
        const auto seconds = [&](const TunedSettings& settings) -> absl::StatusOr<double> {
          EXPECT_EQ(settings.batch * settings.accum, 16);
          return 1 + Steps(static_cast<double>(settings.batch), static_cast<double>(batch)) +
                 Steps(settings.threads, threads) + Steps(settings.update_threads, 4) +
                 Steps(static_cast<double>(settings.tile_elems), static_cast<double>(tile));
        };
        const auto outcome = SearchSettings(kStart, Limits(), seconds);
        ASSERT_TRUE(outcome.ok());
        EXPECT_EQ(outcome->trials[outcome->best].settings,
                  (TunedSettings{batch, 16 / batch, threads, 4, tile}));
        EXPECT_EQ(outcome->trials.front().settings, kStart);
      }
    }
  }
}

TEST(AutotuneSearch, TriesNothingTwice) {
  const auto outcome = SearchSettings(
      kStart, Limits(), [](const TunedSettings&) -> absl::StatusOr<double> { return 1.0; });
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->best, 0);
  for (size_t i = 0; i < outcome->trials.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(outcome->trials[i].settings == outcome->trials[j].settings);
    }
  }
}

TEST(AutotuneSearch, ALittleFasterIsNotFaster) {
  double seconds = 1;
  const auto outcome = SearchSettings(kStart, Limits(), [&](const TunedSettings&) {
    seconds -= 0.001;
    return absl::StatusOr<double>(seconds);
  });
  EXPECT_EQ(outcome->best, 0);
}

TEST(AutotuneSearch, WhatDoesNotFitIsLeftOut) {
  const auto seconds = [](const TunedSettings& settings) -> absl::StatusOr<double> {
    if (settings.batch > 4) return DoesNotFitError("too large");
    return static_cast<double>(settings.accum);
  };
  const auto outcome = SearchSettings(kStart, Limits(), seconds);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->best, 0);
  EXPECT_EQ(outcome->trials[1].settings.batch, 8);
  EXPECT_FALSE(outcome->trials[1].step_s.has_value());
  EXPECT_EQ(outcome->trials[1].why_not, "too large");
}

TEST(AutotuneSearch, OtherErrorsEndIt) {
  int trials = 0;
  const auto seconds = [&](const TunedSettings&) -> absl::StatusOr<double> {
    if (++trials == 3) return InterruptedError("stopped");
    return 1.0;
  };
  EXPECT_EQ(ExitCodeOf(SearchSettings(kStart, Limits(), seconds).status()), ExitCode::kInterrupted);
  EXPECT_EQ(trials, 3);
}

TEST(AutotuneSearch, ARunThatDoesNotFitIsNotTuned) {
  const auto no = [](const TunedSettings&) -> absl::StatusOr<double> {
    return DoesNotFitError("too large");
  };
  EXPECT_EQ(ExitCodeOf(SearchSettings(kStart, Limits(), no).status()), ExitCode::kDoesNotFit);
}

TEST(AutotuneSearch, KeepsWithinItsLimits) {
  TuneLimits limits = Limits();
  limits.min_batch = 2;
  limits.max_batch = 8;
  limits.only_batches = true;
  const auto faster_with_less = [](const TunedSettings& settings) -> absl::StatusOr<double> {
    EXPECT_GE(settings.batch, 2);
    EXPECT_LE(settings.batch, 8);
    EXPECT_EQ(settings.threads, 8);
    EXPECT_EQ(settings.tile_elems, 1 << 20);
    return static_cast<double>(settings.batch);
  };
  const auto outcome = SearchSettings(kStart, limits, faster_with_less);
  EXPECT_EQ(outcome->trials[outcome->best].settings.batch, 2);
  limits.max_trials = 2;
  EXPECT_EQ(SearchSettings(kStart, limits, faster_with_less)->trials.size(), 2);
}

TEST(AutotuneSearch, RowsOfAStepThatAreNoPowerOfTwoStayWhole) {
  TunedSettings start = kStart;
  start.batch = 5;
  start.accum = 3;
  const auto seconds = [](const TunedSettings& settings) -> absl::StatusOr<double> {
    EXPECT_EQ(settings.batch * settings.accum, 15);
    return 1.0 / static_cast<double>(settings.batch);
  };
  const auto outcome = SearchSettings(start, Limits(), seconds);
  EXPECT_EQ(outcome->trials[outcome->best].settings.batch, 15);
}

}  // namespace
}  // namespace forebay
