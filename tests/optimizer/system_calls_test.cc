// A step of the optimizer through the window makes no system call but those of the engine and of
// threads that sleep and wake.
#include <sys/syscall.h>

#include <string>
#include <vector>

#include "forebay/tests/allowed_calls.h"
#include "forebay/tests/optimizer/windowed_run.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

std::string CallsOfAStep(bool io_uring, const std::vector<uint32_t>& allowed) {
  const TemporaryFolder folder;
  return WatchCalls(io_uring ? allowed : WithPageCacheCalls(allowed, folder),
                    [&]() -> std::function<std::string()> {
                      auto made = WindowedRun::Start(io_uring, folder.path());
                      if (!made.ok()) {
                        const std::string why = "skip: " + MessageOf(made.status());
                        return [why] { return why; };
                      }
                      WindowedRun* const run = made->release();
                      // What is made once is made here.
                      if (!run->Step(1) || !run->Commit(1) || !run->Step(2))
                        return [] { return "no step works"; };
                      return [run] { return run->Step(3) ? "" : "the step failed"; };
                    });
}

TEST(StepSystemCalls, WithIoUringAreItsOwnSleepsAndWakes) {
  const std::string told = CallsOfAStep(true, {SYS_io_uring_enter, SYS_futex, SYS_write});
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_EQ(told, "");
}

TEST(StepSystemCalls, WithThreadsAreReadsWritesSleepsAndWakes) {
  const std::string told = CallsOfAStep(false, {SYS_pread64, SYS_pwrite64, SYS_futex});
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_EQ(told, "");
}

}  // namespace
}  // namespace forebay
