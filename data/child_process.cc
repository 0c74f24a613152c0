#include "forebay/data/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

extern char** environ;

namespace forebay {
namespace {

// posix_spawn with `input` and `output` (-1: shared) as the child's standard streams. Returns an
// errno.
int Spawn(const std::vector<std::string>& args, int input, int output, pid_t& pid) {
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (input >= 0) posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  if (output >= 0) posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  // The child starts as from a shell, whatever this process blocks or ignores.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, signal);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& args, ChildStreams streams) {
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
  if (const int error = Spawn(args, child_input.get(), child_output.get(), pid); error != 0) {
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

std::string ChildProcess::ReadAll() {
  while (Fill()) {
  }
  return std::exchange(buffer_, {});
}

int ChildProcess::Wait() {
  while (!collected_) {
    int status = 0;
    if (::waitpid(pid_, &status, 0) < 0) {
      if (errno == EINTR) continue;
      exit_code_ = 1;  // somebody else collected it: nothing is known of its end
    } else {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    collected_ = true;
  }
  return exit_code_;
}

}  // namespace forebay
