#include "forebay/train/plan/measure_speeds.h"

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

DecoderConfig SmallModel() {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 5000;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 3;
  config.num_heads = config.num_kv_heads = 4;
  config.head_dim = 16;
  config.max_positions = 64;
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

TEST(MeasureSpeeds, FindsWhatABlockAndAnUpdateReach) {
  const auto speeds =
      MeasureSpeeds(SmallModel(), SmallSteps(), /*num_cores=*/1, [] { return false; });
  ASSERT_TRUE(speeds.ok()) << speeds.status();
  // No machine is slower, or faster, than these.
  EXPECT_GT(speeds->matmul_flops_per_s, 1e6);
  EXPECT_LT(speeds->matmul_flops_per_s, 1e15);
  EXPECT_GT(speeds->memory_bytes_per_s, 1e7);
  EXPECT_LT(speeds->memory_bytes_per_s, 1e13);
}

TEST(MeasureSpeeds, StopsWhenItIsAsked) {
  const auto speeds = MeasureSpeeds(SmallModel(), SmallSteps(), 1, [] { return true; });
  EXPECT_EQ(ExitCodeOf(speeds.status()), ExitCode::kInterrupted);
}

TEST(MeasureDisks, LeavesWhatIsKnownAlone) {
  const TemporaryFolder folder;
  MachineLimits limits;
  limits.disks = {{.folder = folder.Path("a"), .file_system = 1},
                  {.folder = folder.Path("b"), .file_system = 1},
                  {.folder = folder.Path("c"),
                   .file_system = 2,
                   .read_bytes_per_s = 3e9,
                   .write_bytes_per_s = 2e9}};
  ASSERT_EQ(MeasureDisks(
                SmallSteps(), [] { return false; }, limits),
            absl::OkStatus());
  EXPECT_GT(limits.disks[0].read_bytes_per_s, 0);
  EXPECT_GT(limits.disks[0].write_bytes_per_s, 0);
  EXPECT_EQ(limits.disks[1].read_bytes_per_s, limits.disks[0].read_bytes_per_s);
  EXPECT_EQ(limits.disks[2].read_bytes_per_s, 3e9);
}

}  // namespace
}  // namespace forebay
