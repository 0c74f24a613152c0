#include "forebay/base/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"

extern char** environ;

namespace forebay {
namespace {

constexpr int kStopPollMs = 100;
constexpr int kHeedsSigtermMs = 1000;
constexpr int kCannotBeRun = 127;  // as a shell says it; the parent knows the errno

// Blocks every signal of this thread for the object's life.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// `fd` as the standard stream `stream` of the program to be run.
bool UseAs(int fd, int stream) {
  // dup2 of a descriptor to itself would leave O_CLOEXEC on.
  return fd == stream ? ::fcntl(fd, F_SETFD, 0) == 0 : ::dup2(fd, stream) >= 0;
}

// The child between fork and exec: async-signal-safe calls alone, as other threads may have held
// locks. Returns only when the program cannot be run, with errno.
void BecomeProgram(char* const* argv, pid_t parent, int input, int output, int death_signal) {
  if (::prctl(PR_SET_PDEATHSIG, death_signal) != 0) return;
  // The parent may have died before that.
  if (::getppid() != parent) ::_exit(128 + death_signal);
  if (input >= 0 && !UseAs(input, STDIN_FILENO)) return;
  if (output >= 0 && !UseAs(output, STDOUT_FILENO)) return;
  // It starts as from a shell, whatever this process handles, ignores or blocks; but what nohup is
  // to spare this process is to spare its program too.
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv, environ);
}

// Starts args[0] with `input` and `output` (-1: shared) as its standard streams. Returns an errno.
// Not posix_spawn, which has no place for the signal of the parent's death.
int Spawn(const std::vector<std::string>& args, int input, int output, int death_signal,
          pid_t& pid) {
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  // Closed by a successful exec; otherwise the child writes its errno.
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
  UniqueFd failure(ends[0]), child_failure(ends[1]);
  const pid_t parent = ::getpid();
  {
    // Until the child has its own handlers, a signal would run ours in it.
    const AllSignalsBlocked blocked;
    pid = ::fork();
    if (pid < 0) return errno;
    if (pid == 0) {
      BecomeProgram(argv.data(), parent, input, output, death_signal);
      const int error = errno;
      [[maybe_unused]] const ssize_t told = ::write(child_failure.get(), &error, sizeof(error));
      ::_exit(kCannotBeRun);
    }
  }
  child_failure.Reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(failure.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(error)) return 0;
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return error;
}

int ExitCodeFrom(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

bool EndedByStopSignal(int exit_code) {
  return exit_code == 128 + SIGHUP || exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM;
}

bool IsExecutable(const std::string& path) {
  return !IsDirectory(path) && ::access(path.c_str(), X_OK) == 0;
}

std::string FindInPath(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    if (colon > 0) {
      std::string candidate = JoinPath(std::string(rest.substr(0, colon)), std::string(name));
      if (IsExecutable(candidate)) return candidate;
    }
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return "";
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& args, ChildStreams streams, AtOurDeath at_our_death) {
  UniqueFd our_input, our_output, child_input, child_output;
  if (streams == ChildStreams::kOurs) {
    // A socket as the child's input, because only sockets can be written to without risking
    // SIGPIPE.
    std::array<int, 2> ends;
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return EnvironmentError(
          fmt::format("cannot make a socket pair for '{}': {}", args[0], ErrnoText(errno)));
    }
    our_input = UniqueFd(ends[0]);
    child_input = UniqueFd(ends[1]);
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      return EnvironmentError(
          fmt::format("cannot make a pipe for '{}': {}", args[0], ErrnoText(errno)));
    }
    our_output = UniqueFd(ends[0]);
    child_output = UniqueFd(ends[1]);
  }
  pid_t pid = -1;
  const int death_signal = at_our_death == AtOurDeath::kIsKilled ? SIGKILL : SIGTERM;
  if (const int error = Spawn(args, child_input.get(), child_output.get(), death_signal, pid);
      error != 0) {
    return EnvironmentError(fmt::format(
        "cannot run '{}': {}. Check that it is an executable program", args[0], ErrnoText(error)));
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess(pid));
  child->input_ = std::move(our_input);
  child->output_ = std::move(our_output);
  return child;
}

ChildProcess::~ChildProcess() {
  EndInput();
  if (output_.valid()) ReadAll();  // so that it can write its last words and end
  Wait();
}

bool ChildProcess::Send(std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void ChildProcess::EndInput() {
  input_.Reset();
}

bool ChildProcess::Fill() {
  std::array<char, 1 << 16> piece;
  ssize_t got = 0;
  do {
    got = ::read(output_.get(), piece.data(), piece.size());
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return false;
  buffer_.append(piece.data(), static_cast<size_t>(got));
  return true;
}

bool ChildProcess::ReadLine(std::string& line) {
  size_t newline = buffer_.find('\n');
  while (newline == std::string::npos) {
    const size_t searched = buffer_.size();
    if (!Fill()) return false;
    newline = buffer_.find('\n', searched);
  }
  line.assign(buffer_, 0, newline);
  buffer_.erase(0, newline + 1);
  return true;
}

std::string ChildProcess::ReadAll(const StopFunction& stop) {
  while (true) {
    if (stop) {
      pollfd output = {output_.get(), POLLIN, 0};
      const int ready = ::poll(&output, 1, kStopPollMs);
      if (stop()) break;
      if (ready <= 0) continue;
    }
    if (!Fill()) break;
  }
  return std::exchange(buffer_, {});
}

bool ChildProcess::Collect(int flags) {
  if (collected_) return true;
  int status = 0;
  pid_t ended = 0;
  do {
    ended = ::waitpid(pid_, &status, flags);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return false;
  // Somebody else has collected it where the call failed: nothing is known of its end.
  exit_code_ = ended < 0 ? 1 : ExitCodeFrom(status);
  collected_ = true;
  return true;
}

int ChildProcess::Wait() {
  Collect(0);
  return exit_code_;
}

void ChildProcess::Terminate() {
  // Programs that the child has started may hold its output open; nobody waits for them.
  EndInput();
  output_.Reset();
  if (Collect(WNOHANG)) return;
  ::kill(pid_, SIGTERM);
  const Stopwatch watch;
  while (!Collect(WNOHANG) && watch.Seconds() * 1000 < kHeedsSigtermMs) ::usleep(5000);
  if (!Collect(WNOHANG)) ::kill(pid_, SIGKILL);
  Wait();
}

}  // namespace forebay
