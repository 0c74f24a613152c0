// Runs work in a child process that ends at the first system call that is not allowed: shows that
// the hot path makes no other ones. Every thread of the child is watched, by a seccomp filter.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/temporary_folder.h"

namespace forebay {

// Where the child that is watched reports to.
inline int allowed_calls_report = -1;

// Instead of the call. No allocation and no stdio: any thread may be anywhere.
inline void ReportCall(int, siginfo_t* info, void*) {
  char text[] = "system call       ";
  int number = info->si_syscall;
  size_t at = sizeof(text) - 2;
  do {
    text[at--] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  [[maybe_unused]] const ssize_t written = ::write(allowed_calls_report, text, sizeof(text) - 1);
  ::_exit(1);
}

// "" or why this system has no such filters. From here on other calls than `allowed`, and those
// that the report needs, end the process, whichever thread makes them.
inline std::string AllowCalls(std::vector<uint32_t> allowed) {
  struct sigaction action = {};
  action.sa_sigaction = ReportCall;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSYS, &action, nullptr);
  for (const uint32_t call : {SYS_exit_group, SYS_rt_sigreturn, SYS_clock_gettime}) {
    allowed.push_back(call);
  }
  const auto constant = [](uint16_t code, uint32_t value, uint8_t yes, uint8_t no) {
    return sock_filter{code, yes, no, value};
  };
  std::vector<sock_filter> filter;
  filter.push_back(constant(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr), 0, 0));
  for (size_t i = 0; i < allowed.size(); ++i) {
    const auto to_yes = static_cast<uint8_t>(allowed.size() - i);
    filter.push_back(constant(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], to_yes, 0));
  }
  filter.push_back(constant(BPF_RET | BPF_K, SECCOMP_RET_TRAP, 0, 0));
  filter.push_back(constant(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0));
  // The report itself: a write, and to the pipe alone.
  constexpr uint32_t kArgument = offsetof(seccomp_data, args);
  std::vector<sock_filter> report = {
      constant(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr), 0, 0),
      constant(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
      constant(BPF_LD | BPF_W | BPF_ABS, kArgument, 0, 0),
      constant(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(allowed_calls_report), 0, 1),
      constant(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0)};
  filter.insert(filter.begin(), report.begin(), report.end());
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    return fmt::format("skip: no seccomp filters here: errno {}", errno);
  }
  return "";
}

// `prepare` runs as it likes and gives the work that is then watched, which says "" or what went
// wrong. Returns that, "system call N" for one that is not allowed, or "skip: ..." where this
// system cannot watch. Requires: this process runs no other thread.
inline std::string WatchCalls(const std::vector<uint32_t>& allowed,
                              const std::function<std::function<std::string()>()>& prepare) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "skip: a sanitizer makes calls of its own";
#endif
  const ChildEnd end = RunChild([&](int report) {
    allowed_calls_report = report;
    // Never freed: that would take other calls.
    auto* const work = new std::function<std::string()>(prepare());
    auto* const text = new std::string(AllowCalls(allowed));
    if (text->empty()) *text = (*work)();
    const auto length = static_cast<ssize_t>(text->size());
    ::_exit(::write(report, text->data(), text->size()) == length ? 0 : 1);
  });
  if (WIFSIGNALED(end.status)) return fmt::format("killed by signal {}", WTERMSIG(end.status));
  // The watch ends the process with 1 behind its report.
  if (WEXITSTATUS(end.status) != 0 && end.text.empty()) {
    return fmt::format("exit code {}", WEXITSTATUS(end.status));
  }
  return end.text;
}

// What the threads engine needs besides where files cannot be direct (tmpfs): it writes out and
// drops what the page cache keeps.
inline std::vector<uint32_t> WithPageCacheCalls(std::vector<uint32_t> allowed,
                                                const TemporaryFolder& folder) {
  const auto file = OpenDirectFile(folder.Path("tried"), {.create = true, .size_bytes = 4096});
  FOREBAY_CHECK(file.ok());
  if (!file->direct) allowed.insert(allowed.end(), {SYS_sync_file_range, SYS_fadvise64});
  return allowed;
}

}  // namespace forebay
