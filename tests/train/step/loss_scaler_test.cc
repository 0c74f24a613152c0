#include "forebay/train/step/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

LossScaler Zero(int power, int64_t window, int64_t hysteresis) {
  return LossScaler({.rules = LossScaling::kZero,
                     .initial_scale_power = power,
                     .window = window,
                     .hysteresis = hysteresis});
}

// Updates with an overflow at the steps (from 0) that are named, and returns the scale after each.
std::vector<double> ScalesAfter(LossScaler& scaler, int64_t num_steps,
                                const std::set<int64_t>& overflows) {
  std::vector<double> scales;
  for (int64_t step = 0; step < num_steps; ++step) {
    EXPECT_TRUE(scaler.Update(overflows.contains(step)).ok()) << "step " << step;
    scales.push_back(scaler.scale());
  }
  return scales;
}

// ---- What published runs logged. Of GPT-2 under ZeRO, with overflows at its first 23 steps:
TEST(LossScaler, KeepsTheFirstOverflowAndHalvesWithEachOneAfter) {
  LossScaler scaler = Zero(32, 1000, 2);
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  for (int step = 0; step < 23; ++step) {
    ASSERT_TRUE(scaler.Update(true).ok());
    EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 32 - step)) << "step " << step;
  }
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(LossScaler, FailsWhenItWouldHaveToFallBelowItsLeast) {
  LossScaler scaler = Zero(32, 1000, 2);
  for (int step = 0; step < 33; ++step) ASSERT_TRUE(scaler.Update(true).ok());
  EXPECT_EQ(scaler.scale(), 1);
  const Json before = scaler.state();
  const absl::Status status = scaler.Update(true);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kNumerical);
  EXPECT_THAT(MessageOf(status), HasSubstr("least loss scale, 1"));
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, CountsHysteresisDown) {
  LossScaler scaler = Zero(8, 1000, 3);
  EXPECT_THAT(ScalesAfter(scaler, 4, {0, 1, 2, 3}), testing::ElementsAre(256, 256, 128, 64));
}

TEST(LossScaler, StaysWhereItIsWithoutOverflowsBeforeItsWindow) {
  LossScaler scaler = Zero(8, 1000, 4);
  EXPECT_THAT(ScalesAfter(scaler, 300, {}), testing::Each(256));
}

// A convolutional net under ZeRO-2 that overflows whenever the scale is 65536, over 10 epochs of
// 1,563 steps, and once, in the last of them, at 32768: pairs of overflows 1,003 steps apart.
TEST(LossScaler, RidesTheEdgeInPairs) {
  constexpr int64_t kLone = 14100;
  LossScaler scaler = Zero(16, 1000, 2);
  std::vector<int64_t> overflows;
  for (int64_t step = 0; step < 15630; ++step) {
    const double before = scaler.scale();
    const bool overflowed = before >= 65536 || step == kLone;
    if (overflowed) overflows.push_back(step);
    ASSERT_TRUE(scaler.Update(overflowed).ok());
    if (step == kLone) {
      EXPECT_EQ(scaler.scale(), 16384);  // no hysteresis is left since the pair
    }
    if (scaler.scale() > before) {
      EXPECT_EQ((step - overflows.back() - 1) % 1000, 0);
    }
  }
  ASSERT_EQ(overflows.size(), 31u);
  for (size_t pair = 0; pair < 15; ++pair) {
    EXPECT_EQ(overflows[2 * pair], static_cast<int64_t>(1003 * pair));
    EXPECT_EQ(overflows[2 * pair + 1], static_cast<int64_t>(1003 * pair + 1));
  }
}

// LeNet without ZeRO: power 15, window 500.
TEST(LossScaler, OfStage0FallsAtOnceAndGrowsAfterItsWindow) {
  LossScaler scaler({.rules = LossScaling::kStage0, .initial_scale_power = 15, .window = 500});
  const std::vector<int64_t> logged = {501,  553,  1522, 2233, 2757, 3405,
                                       4002, 4512, 5042, 5661, 6210};
  const std::vector<double> scales =
      ScalesAfter(scaler, 6300, std::set<int64_t>(logged.begin(), logged.end()));
  EXPECT_EQ(scales[499], 32768);
  EXPECT_EQ(scales[500], 65536);
  EXPECT_EQ(scales[501], 32768);
  EXPECT_EQ(scales[553], 16384);
  for (const int64_t step : logged) EXPECT_EQ(scales[step], scales[step - 1] / 2);
  // Between them it doubles after every 501 good steps: where two follow each other in less, not.
  for (size_t i = 1; i < logged.size(); ++i) {
    const auto num_good = static_cast<int>(logged[i] - logged[i - 1] - 1);
    EXPECT_EQ(scales[logged[i] - 1], std::ldexp(scales[logged[i - 1]], (num_good - 1) / 500));
  }
  const auto num_skipped = [&](int64_t steps) {
    return std::ranges::count_if(logged, [&](int64_t step) { return step < steps; });
  };
  EXPECT_THAT(std::vector({num_skipped(2000), num_skipped(4000), num_skipped(6000)}),
              testing::ElementsAre(3, 6, 10));
}

TEST(LossScaler, OfStage0StaysAtItsLeastWithoutAnError) {
  LossScaler scaler({.rules = LossScaling::kStage0, .initial_scale_power = 1});
  EXPECT_THAT(ScalesAfter(scaler, 4, {0, 1, 2, 3}), testing::ElementsAre(1, 1, 1, 1));
}

// LeNet under ZeRO with window 500, whose gradients are too large for 32768 from some time after
// the scale came there until it falls: skips come in pairs, and each pair costs one halving. By
// steps 2000, 4000 and 6000 the log counts 6, 12 and 18.
TEST(LossScaler, HalvesOnceAPairOfOverflows) {
  constexpr int64_t kBears = 160;  // steps at 32768
  LossScaler scaler = Zero(15, 500, 2);
  int64_t at_32768 = 0;
  std::vector<int64_t> skipped;
  std::vector<int64_t> counts;
  for (int64_t step = 0; step < 6000; ++step) {
    const double before = scaler.scale();
    at_32768 = before == 32768 ? at_32768 + 1 : 0;
    const bool overflowed = at_32768 > kBears;
    if (overflowed) skipped.push_back(step);
    ASSERT_TRUE(scaler.Update(overflowed).ok());
    ASSERT_LE(scaler.scale(), 32768);
    if (overflowed) {
      // 32768 is kept by the first of a pair, and 16384 comes of the second.
      EXPECT_EQ(scaler.scale(), skipped.size() % 2 == 1 ? 32768 : 16384) << "step " << step;
    }
    if ((step + 1) % 2000 == 0) counts.push_back(static_cast<int64_t>(skipped.size()));
  }
  EXPECT_THAT(counts, testing::ElementsAre(6, 12, 18));
}

TEST(LossScaler, ThatIsStaticNeverMoves) {
  LossScaler scaler({.static_scale = 128, .window = 1, .hysteresis = 1});
  EXPECT_THAT(ScalesAfter(scaler, 6, {1, 2, 3}), testing::Each(128));
}

// scaler_sequences.json holds what DeepSpeed's and PyTorch's scalers gave (scaler_sequences.py).
TEST(LossScaler, GivesTheScalesOfDeepSpeedAndPyTorch) {
  const auto cases = ReadJsonFile(
      JoinPath(FOREBAY_SOURCE_DIR, "tests/train/sequences/scaler_sequences.json"), 1 << 20);
  ASSERT_TRUE(cases.ok()) << cases.status();
  int num_errors = 0;
  for (const Json& item : *cases) {
    SCOPED_TRACE(item["rules"].dump() + " " + item["initial_scale_power"].dump());
    LossScaler scaler({.rules = item["rules"] == "zero"     ? LossScaling::kZero
                                : item["rules"] == "stage0" ? LossScaling::kStage0
                                                            : LossScaling::kTorch,
                       .initial_scale_power = item["initial_scale_power"].get<int>(),
                       .window = item["window"].get<int64_t>(),
                       .hysteresis = item["hysteresis"].get<int64_t>(),
                       .consecutive_hysteresis = item["consecutive_hysteresis"].get<bool>(),
                       .min_scale = item["min_scale"].get<double>()});
    const Json& scales = item["scales"];
    for (size_t step = 0; step < scales.size(); ++step) {
      ASSERT_TRUE(scaler.Update(item["overflows"][step].get<bool>()).ok()) << "step " << step;
      ASSERT_EQ(scaler.scale(), scales[step].get<double>()) << "step " << step;
    }
    if (!item["error_at"].is_null()) {
      ++num_errors;
      EXPECT_FALSE(scaler.Update(item["overflows"][scales.size()].get<bool>()).ok());
    }
  }
  EXPECT_GE(num_errors, 1);
}

TEST(LossScaler, GoesOnFromItsStateAsIfItHadNeverStopped) {
  for (const LossScaling rules : {LossScaling::kZero, LossScaling::kStage0, LossScaling::kTorch}) {
    const LossScalerOptions options = {
        .rules = rules, .initial_scale_power = 10, .window = 3, .hysteresis = 2};
    LossScaler whole(options);
    for (int step = 0; step < 40; ++step) {
      LossScaler part(options);
      ASSERT_TRUE(part.Restore(Json::parse(whole.state().dump())).ok());
      const bool overflowed = step % 5 == 1 || step % 7 == 2;
      ASSERT_TRUE(part.Update(overflowed).ok());
      ASSERT_TRUE(whole.Update(overflowed).ok());
      ASSERT_EQ(part.state(), whole.state()) << "step " << step;
    }
  }
}

TEST(LossScaler, RefusesAStateThatIsNotOne) {
  const Json whole = Zero(8, 10, 2).state();
  for (const auto& [key, value] : whole.items()) {
    LossScaler scaler = Zero(8, 10, 2);
    Json part = whole;
    part.erase(key);
    EXPECT_THAT(MessageOf(scaler.Restore(part)), HasSubstr("'" + key + "'"));
    part[key] = "text";
    EXPECT_THAT(MessageOf(scaler.Restore(part)), HasSubstr("'" + key + "'"));
  }
  LossScaler scaler = Zero(8, 10, 2);
  EXPECT_FALSE(scaler.Restore(Json::array()).ok());
}

}  // namespace
}  // namespace forebay
