#include "forebay/measure/load/job.h"

#include <functional>
#include <limits>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

Job GoodJob() {
  Job job;
  job.targets = {{"/somewhere", 0}};
  return job;
}

TEST(CheckJob, AcceptsTheDefaults) {
  EXPECT_TRUE(CheckJob(GoodJob()).ok());
}

TEST(CheckJob, NamesTheFlagThatCannotBe) {
  struct Case {
    const char* words;
    std::function<void(Job&)> change;
  };
  const std::vector<Case> cases = {
      {"no folder", [](Job& job) { job.targets.clear(); }},
      {"weight", [](Job& job) { job.targets[0].weight = -1; }},
      {"--op", [](Job& job) { job.loads.clear(); }},
      {"--bs is 1000", [](Job& job) { job.block_bytes = 1000; }},
      {"--bs is 0", [](Job& job) { job.block_bytes = 0; }},
      {"--qd is 0", [](Job& job) { job.depth = 0; }},
      {"--qd is 1000000", [](Job& job) { job.depth = 1'000'000; }},
      {"--size is 0", [](Job& job) { job.size_bytes = 0; }},
      {"need a file of 64.0 MiB", [](Job& job) { job.size_bytes = 63 << 20; }},
      {"--time", [](Job& job) { job.seconds = 0; }},
      {"--time", [](Job& job) { job.seconds = std::numeric_limits<double>::infinity(); }},
      {"--warmup", [](Job& job) { job.warmup_s = -1; }},
      {"--threads is 0", [](Job& job) { job.threads = 0; }},
      {"--threads is 33, but no more than 32", [](Job& job) { job.threads = 33; }},
      {"no more than 1 operation is in flight",
       [](Job& job) {
         job.threads = 2;
         job.depth = 1;
       }},
      {"--steady looks at 5 s, which --time=3s never reaches",
       [](Job& job) {
         job.steady = SteadyRule{0.02, 5};
       }},
      {"--repeats", [](Job& job) { job.repeats = 0; }},
      {"--fill", [](Job& job) { job.compressible_percent = 100; }},
      {"--flush", [](Job& job) { job.flush = FlushRule::kEveryN; }},
  };
  for (const Case& c : cases) {
    Job job = GoodJob();
    c.change(job);
    const absl::Status status = CheckJob(job);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << c.words;
    EXPECT_THAT(MessageOf(status), HasSubstr(c.words));
  }
}

TEST(CheckJob, SaysEverythingThatIsWrongAtOnce) {
  Job job = GoodJob();
  job.seconds = -1;
  job.repeats = 0;
  const std::string message = MessageOf(CheckJob(job));
  EXPECT_THAT(message, HasSubstr("--time"));
  EXPECT_THAT(message, HasSubstr("--repeats"));
}

TEST(CheckJob, TooManyThreadsAreTheOnlyProblemOfTooManyThreads) {
  Job job = GoodJob();
  job.threads = 100'000;
  EXPECT_EQ(MessageOf(CheckJob(job)), "--threads is 100000; allowed: 1 to 64");
}

TEST(CheckJob, ASteadyStateMayTakeAllOfTheTime) {
  Job job = GoodJob();
  job.steady = SteadyRule{0.02, 3};
  EXPECT_TRUE(CheckJob(job).ok());
}

TEST(CheckJob, OneOperationIsOne) {
  Job job = GoodJob();
  job.depth = 1;
  job.size_bytes = 1 << 20;
  EXPECT_THAT(MessageOf(CheckJob(job)), HasSubstr("1 operation of 1.00 MiB in flight need a file "
                                                  "of 2.00 MiB, twice as much"));
}

TEST(CheckJob, TheSizeThatIsEnoughIsOneToType) {
  Job job = GoodJob();
  job.block_bytes = int64_t{1} << 30;
  job.depth = 4;
  job.size_bytes = 1 << 20;
  EXPECT_THAT(MessageOf(CheckJob(job)), HasSubstr("take --size=8G or smaller --bs and --qd"));
}

TEST(CheckJob, SeveralFoldersShareTheDepthOfTheRings) {
  Job job = GoodJob();
  job.depth = 100;
  EXPECT_TRUE(CheckJob(job).ok());
  job.targets.push_back({"/elsewhere", 0});
  EXPECT_THAT(MessageOf(CheckJob(job)), HasSubstr("allowed: 1 to 64"));
  job.threads = 2;
  EXPECT_TRUE(CheckJob(job).ok());
}

// A stripe's operations may all wait for the slowest of its disks.
TEST(CheckJob, OfSeveralFoldersEachFileHasRoomForAllOperations) {
  Job job = GoodJob();
  job.targets.push_back({"/elsewhere", 0});
  job.targets.push_back({"/third", 0});
  job.size_bytes = 191 << 20;
  EXPECT_THAT(MessageOf(CheckJob(job)), HasSubstr("96 operations of 1.00 MiB in flight need a file "
                                                  "of 192 MiB, twice as much"));
  job.size_bytes = 192 << 20;
  EXPECT_TRUE(CheckJob(job).ok()) << CheckJob(job);
}

}  // namespace
}  // namespace forebay
