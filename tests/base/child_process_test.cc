#include "forebay/base/process/child_process.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "forebay/base/errors.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(FindInPath, FindsProgramsAndNothingElse) {
  EXPECT_TRUE(IsExecutable(FindInPath("sh")));
  EXPECT_EQ(FindInPath("no-program-has-this-name"), "");
}

TEST(ChildProcess, GetsInputAndGivesOutput) {
  auto child = ChildProcess::Start({FindInPath("cat")}, ChildStreams::kOurs);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE((*child)->Send("some\nwords"));
  (*child)->EndInput();
  std::string line;
  EXPECT_TRUE((*child)->ReadLine(line));
  EXPECT_EQ(line, "some");
  EXPECT_EQ((*child)->ReadAll(), "words");
  EXPECT_EQ((*child)->Wait(), 0);
}

TEST(ChildProcess, WhatIsNoProgramIsAnErrorOfTheEnvironment) {
  const auto child = ChildProcess::Start({"/no/such/program"}, ChildStreams::kOurs);
  EXPECT_EQ(ExitCodeOf(child.status()), ExitCode::kEnvironment) << child.status();
}

// A program that heeds no SIGTERM, of a parent that gets kill -9. It has the pipe open for as long
// as it lives.
TEST(ChildProcess, IsKilledWithItsParentWhereThatIsAskedFor) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto child = ChildProcess::Start(
        {FindInPath("sh"), "-c",
         "trap : TERM; echo ready; i=300; while [ $i -gt 0 ]; do sleep 0.1; i=$((i-1)); done"},
        ChildStreams::kOurs, AtOurDeath::kIsKilled);
    std::string line;
    if (child.ok() && (*child)->ReadLine(line)) ::raise(SIGKILL);
    ::_exit(1);
  }
  ::close(ends[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFSIGNALED(status));
  pollfd closed = {ends[0], POLLIN, 0};
  EXPECT_EQ(::poll(&closed, 1, /*ms=*/20'000), 1);
  ::close(ends[0]);
}

}  // namespace
}  // namespace forebay
