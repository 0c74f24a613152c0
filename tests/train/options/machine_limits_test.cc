#include "forebay/train/machine_limits.h"

#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(AskMachine, AnswersForFoldersThatDoNotExistYet) {
  TemporaryFolder folder;
  TrainOptions options;
  options.out = folder.Path("a/b/run");
  const MachineLimits limits = AskMachine(options);
  EXPECT_GT(limits.nvme_free_bytes, 0);
  EXPECT_GT(limits.out_free_bytes, 0);
  EXPECT_TRUE(limits.one_file_system);
  EXPECT_GT(limits.available_memory_bytes, 0);
  EXPECT_GE(limits.num_cores, 1);
}

TEST(AskMachine, AsksNothingAboutFoldersThatAreNotNamed) {
  EXPECT_EQ(AskMachine({}).nvme_free_bytes, -1);
  EXPECT_EQ(AskMachine({}).out_free_bytes, -1);
}

}  // namespace
}  // namespace forebay
