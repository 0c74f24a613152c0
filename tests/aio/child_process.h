// Runs a piece of a test in a child process, where it may give up rights for good: seccomp filters,
// another user, a limit, a private view of the mounts.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "forebay/base/check.h"
#include "forebay/base/file.h"

namespace forebay {

// What `work` returned in the child; "killed by signal N" or "exit code N" when it did not return.
// Requires: this process runs no other thread.
inline std::string InChild(const std::function<std::string()>& work) {
  int fds[2];
  FOREBAY_CHECK(::pipe(fds) == 0);
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  const pid_t child = ::fork();
  FOREBAY_CHECK(child >= 0);
  if (child == 0) {
    const std::string text = work();
    const bool sent =
        ::write(writer.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(sent ? 0 : 1);
  }
  writer.Reset();
  std::string text;
  char part[4096];
  for (ssize_t got; (got = ::read(reader.get(), part, sizeof(part))) > 0;) text.append(part, got);
  int status = 0;
  FOREBAY_CHECK(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "exit code " + std::to_string(WEXITSTATUS(status));
  return text;
}

}  // namespace forebay
