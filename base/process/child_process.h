// One child process with its standard input and output in our hands.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

enum class ChildStreams {
  kOurs,    // input and output are connected to this object; standard error is shared
  kShared,  // all three are shared with this process
};

// The signal that the child gets when its parent dies, kill -9 included.
enum class AtOurDeath {
  kEnds,      // SIGTERM: it has something to put in order
  kIsKilled,  // SIGKILL: whatever it does is to stop there
};

// The program `name` in a folder of PATH; empty: there is none. An empty entry of PATH, which means
// the current folder to a shell, is none here: running what lies there would be a trap.
std::string FindInPath(std::string_view name);
bool IsExecutable(const std::string& path);

// Whether it stands for a signal that stops programs: SIGHUP, SIGINT or SIGTERM, which a terminal
// or a batch system sends to a whole group. The child may see it before this process does.
bool EndedByStopSignal(int exit_code);

// Asks a wait to end early: polled some times a second, on the waiting thread. May be empty.
using StopFunction = std::function<bool()>;

// Owned by one thread, which must live as long as the object: to the kernel the end of that thread
// is the parent's death. So a parent that is killed leaves no process behind. (What the child
// starts itself is the child's.)
class ChildProcess {
 public:
  // Runs args[0] (a path; no shell, no search) with default signal handling and no descriptor of
  // ours but the standard ones. EnvironmentError when it cannot be run.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& args, ChildStreams streams,
      AtOurDeath at_our_death = AtOurDeath::kEnds);
  // Ends the child's input, lets it finish and collects it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Sends all of `text`; false when the child reads no more. Raises no SIGPIPE.
  bool Send(std::string_view text);
  void EndInput();
  // The next line without its newline; false at the end of the output.
  bool ReadLine(std::string& line);
  // Everything up to the end of the output, or up to when `stop` says true, which leaves the child
  // running.
  std::string ReadAll(const StopFunction& stop = {});
  // Waits for the end. Returns the exit code, or 128 + the signal that ended the child. May be
  // called again.
  int Wait();
  // Ends the child with SIGTERM, or with SIGKILL when it does not heed that within a second, and
  // collects it. Its further output is lost.
  void Terminate();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  bool Fill();
  // Whether the child is collected. `flags`: of waitpid; WNOHANG does not wait for its end.
  bool Collect(int flags);

  pid_t pid_;
  bool collected_ = false;
  int exit_code_ = 0;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;  // read from the child and not yet returned
};

}  // namespace forebay
