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

struct ChildEnd {
  std::string text;  // all that it wrote into the pipe
  int status = 0;    // of waitpid
};

// `work` may write into the pipe `report`; when it returns the child ends with exit code 0.
// Requires: this process runs no other thread.
inline ChildEnd RunChild(const std::function<void(int report)>& work) {
  int fds[2];
  FOREBAY_CHECK(::pipe(fds) == 0);
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  const pid_t child = ::fork();
  FOREBAY_CHECK(child >= 0);
  if (child == 0) {
    work(writer.get());
    ::_exit(0);
  }
  writer.Reset();
  ChildEnd end;
  char part[4096];
  for (ssize_t got; (got = ::read(reader.get(), part, sizeof(part))) > 0;) {
    end.text.append(part, got);
  }
  FOREBAY_CHECK(::waitpid(child, &end.status, 0) == child);
  return end;
}

// What `work` returned in the child; "killed by signal N" or "exit code N" when it did not return.
// Requires: this process runs no other thread.
inline std::string InChild(const std::function<std::string()>& work) {
  const ChildEnd end = RunChild([&](int report) {
    const std::string text = work();
    const bool sent =
        ::write(report, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (!sent) ::_exit(1);
  });
  if (WIFSIGNALED(end.status)) return "killed by signal " + std::to_string(WTERMSIG(end.status));
  if (WEXITSTATUS(end.status) != 0) return "exit code " + std::to_string(WEXITSTATUS(end.status));
  return end.text;
}

}  // namespace forebay
