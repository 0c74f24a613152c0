#include "forebay/measure/runs/wear.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

Job Writes() {
  Job job;
  job.targets = {{"/a", 0}};
  job.loads = {{LoadOp::kWrite, 0}};
  job.size_bytes = 1000;
  job.warmup_s = 1;
  job.seconds = 9;
  job.repeats = 2;
  return job;
}

TEST(PlannedWriteBytes, AreTheFileAndTheWritesOfEveryPass) {
  EXPECT_EQ(PlannedWriteBytes(Writes(), 100), 1000 + 2 * 10 * 100);
  Job job = Writes();
  job.loads = {{LoadOp::kRead, 100}, {LoadOp::kMixed, 75}};
  EXPECT_EQ(PlannedWriteBytes(job, 100), 1000 + 2 * 10 * 25);
  job.loads = {{LoadOp::kRead, 100}};
  EXPECT_EQ(PlannedWriteBytes(job, 100), 1000);
}

TEST(PlannedWriteBytes, SeveralFoldersAreStripedToo) {
  Job job = Writes();
  job.targets.push_back({"/b", 0});
  EXPECT_EQ(PlannedWriteBytes(job, 100), 1000 + 2 * 2 * 10 * 100);
}

TEST(WearNote, IsThereAboveOnePercentOfALife) {
  Job job = Writes();
  BenchTarget target;
  target.directory = "/a";
  target.storage.fs = "ext4";
  target.fill_bytes_per_s = 1e9;
  EXPECT_EQ(WearNote(job, target, false), "");
  job.seconds = 2999;  // two of 3000 s with the warm-up: 6 TB
  EXPECT_THAT(WearNote(job, target, false), HasSubstr("/a: about 6.00 TB are going to be written"));
  job.seconds = 2998;
  EXPECT_EQ(WearNote(job, target, false), "");
  EXPECT_THAT(WearNote(job, target, true), HasSubstr("12.0 TB"));
  target.storage.fs = "tmpfs";
  EXPECT_EQ(WearNote(job, target, true), "");
}

}  // namespace
}  // namespace forebay
