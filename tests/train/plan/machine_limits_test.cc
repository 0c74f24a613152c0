#include "forebay/train/plan/ask_machine.h"

#include <filesystem>
#include <string>

#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(AskMachine, AnswersForFoldersThatDoNotExistYet) {
  TemporaryFolder folder;
  TrainOptions options;
  options.out = folder.Path("a/b/run");
  const MachineLimits limits = AskMachine(options);
  ASSERT_EQ(limits.disks.size(), 1u);
  EXPECT_EQ(limits.disks[0].folder, folder.Path("a/b/run/swap"));
  EXPECT_GT(limits.disks[0].free_bytes, 0);
  EXPECT_GT(limits.out_free_bytes, 0);
  EXPECT_EQ(limits.disks[0].file_system, limits.out_file_system);
  EXPECT_GT(limits.available_memory_bytes, 0);
  EXPECT_GE(limits.num_cores, 1);
}

TEST(AskMachine, AnswersForEveryFolderOfTheSwapArea) {
  TemporaryFolder folder;
  TrainOptions options;
  options.out = folder.Path("run");
  options.nvme = {folder.Path("a"), "/proc"};
  const MachineLimits limits = AskMachine(options);
  ASSERT_EQ(limits.disks.size(), 2u);
  EXPECT_EQ(limits.disks[0].folder, folder.Path("a"));
  EXPECT_EQ(limits.disks[0].file_system, limits.out_file_system);
  EXPECT_NE(limits.disks[1].file_system, limits.out_file_system);
}

TEST(AskMachine, AsksNothingAboutFoldersThatAreNotNamed) {
  ASSERT_EQ(AskMachine({}).disks.size(), 1u);
  EXPECT_EQ(AskMachine({}).disks[0].free_bytes, -1);
  EXPECT_EQ(AskMachine({}).out_free_bytes, -1);
}

TEST(AskMachine, CountsTheExportsOfARunThatGoesOn) {
  TemporaryFolder folder;
  TrainOptions options;
  options.out = folder.Path("run");
  for (const char* name : {"model/model.safetensors", "exports/step-3/model.safetensors"}) {
    const std::string path = JoinPath(options.out, name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    ASSERT_TRUE(WriteFileAtomically(path, "12345").ok());
  }
  EXPECT_EQ(AskMachine(options).exported_bytes, 0);
  options.resume = true;
  EXPECT_EQ(AskMachine(options).exported_bytes, 10);
}

}  // namespace
}  // namespace forebay
