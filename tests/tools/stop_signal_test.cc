#include "forebay/tools/stop_signal.h"

#include <pthread.h>
#include <signal.h>

#include "forebay/base/errors.h"
#include "forebay/tests/without_threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

bool IsBlocked(int signal) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return ::sigismember(&blocked, signal) == 1;
}

TEST(StopSignals, WithoutAThreadToWaitForThemIsAnErrorAndTheyEndTheProcessAsBefore) {
  absl::Status status;
  bool is_blocked = true;
  const bool is_forbidden = RunWithoutThreads([&] {
    status = CatchStopSignals("stopping\n");
    is_blocked = IsBlocked(SIGINT);
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("no thread could be started for the signals"));
  EXPECT_THAT(MessageOf(status), HasSubstr("ulimit -u"));
  EXPECT_FALSE(is_blocked);
}

}  // namespace
}  // namespace forebay
