#include "forebay/train/step/update_scalars.h"

#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace forebay {
namespace {

UpdateScalars First(OptimizerKind optimizer, LrSchedule schedule, LrScheduleArgs args) {
  TrainOptions options;
  options.optimizer = optimizer;
  options.momentum = optimizer == OptimizerKind::kSgd ? 0.9 : 0;
  return NextUpdate(options,
                    {.schedule = schedule, .lr = 1e-2, .num_steps = 10, .args = std::move(args)},
                    RunProgress(options), /*gradient_norm=*/2);
}

TEST(NextUpdate, OfPyTorchsOneCycleMovesTheMomentumOfSgdToo) {
  for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    EXPECT_EQ(First(optimizer, LrSchedule::kOneCycle, {}).beta1, 0.95);
  }
}

TEST(NextUpdate, OfDeepSpeedsOneCycleMovesBetasAlone) {
  const LrScheduleArgs args = {{"cycle_min_lr", 1e-4}, {"cycle_max_lr", 1e-2}};
  const UpdateScalars adamw = First(OptimizerKind::kAdamW, LrSchedule::kDeepSpeedOneCycle, args);
  EXPECT_TRUE(adamw.beta1.has_value());
  EXPECT_EQ(adamw.beta2, 0.99);
  const UpdateScalars sgd = First(OptimizerKind::kSgd, LrSchedule::kDeepSpeedOneCycle, args);
  EXPECT_EQ(sgd.beta1, std::nullopt);
  EXPECT_EQ(sgd.lr, adamw.lr);
}

TEST(NextUpdate, ClipsAndUnscalesInOneFactor) {
  TrainOptions options;
  options.clip = 0.5;
  options.precision = cpu::Precision::kFp16;
  options.loss_scale = 8;
  const RunProgress progress(options);
  EXPECT_EQ(NextUpdate(options, {}, progress, /*gradient_norm=*/0.25).gradient_scale, 1.0 / 8);
  EXPECT_NEAR(NextUpdate(options, {}, progress, /*gradient_norm=*/2).gradient_scale, 0.25 / 8,
              1e-7);
  EXPECT_EQ(NextUpdate(options, {}, progress, 2).step, 1);
}

}  // namespace
}  // namespace forebay
