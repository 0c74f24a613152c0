#include "forebay/train/speeds/measure_host.h"

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

DecoderConfig SmallModel() {
  DecoderConfig config = TinyDecoder();
  config.vocab_size = 5000;
  config.window = {0, 16, 0};
  return config;
}

TrainOptions SmallSteps() {
  TrainOptions options;
  options.batch = 2;
  options.seq = 32;
  options.threads = 1;
  return options;
}

bool NeverStops() {
  return false;
}
bool AlwaysStops() {
  return true;
}

TEST(MeasureHost, FindsWhatABlockAndAnUpdateReach) {
  const auto block = MeasureBlock(SmallModel(), SmallSteps(), /*num_threads=*/1, NeverStops);
  ASSERT_TRUE(block.ok()) << block.status();
  // No machine is slower, or faster, than these.
  EXPECT_GT(*block, 1e6);
  EXPECT_LT(*block, 1e15);
  const auto update = MeasureUpdate(SmallSteps(), /*num_threads=*/1, NeverStops);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_GT(*update, 1e7);
  EXPECT_LT(*update, 1e13);
}

TEST(MeasureHost, FindsWhatADiskReaches) {
  const TemporaryFolder folder;
  const auto speed = MeasureDisk(SmallSteps(), folder.Path("not/there/yet"), NeverStops);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->read_bytes_per_s, 0);
  EXPECT_GT(speed->write_bytes_per_s, 0);
}

TEST(MeasureHost, StopsWhenItIsAsked) {
  const TemporaryFolder folder;
  for (const absl::Status& status :
       {MeasureBlock(SmallModel(), SmallSteps(), 1, AlwaysStops).status(),
        MeasureUpdate(SmallSteps(), 1, AlwaysStops).status(),
        MeasureDisk(SmallSteps(), folder.path(), AlwaysStops).status()}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted);
  }
}

}  // namespace
}  // namespace forebay
