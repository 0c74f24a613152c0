// Ctrl-C, SIGTERM and SIGHUP as a request to stop: the first one asks, the second ends the process
// at once with 130.
//
// A thread of its own waits for them, and all others have them blocked. A handler that interrupts a
// thread is given the memory below that thread's stack pointer, and matrix products of oneDNN use
// the stack pointer for something else on some CPUs: such a handler writes its frame into the heap,
// or into a tensor (oneDNN issue 4845).
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace forebay {

// For the rest of the process; SIGPIPE is ignored too: a closed pipe must not kill a run. A signal
// that the process was started to ignore (nohup) stays ignored. `message` is written to stderr at
// the first signal; it must live for ever. Requires: called once, before any other thread is
// started. Programs that are started later inherit the blocked signals unless they are given
// others. EnvironmentError where the thread cannot be had.
absl::Status CatchStopSignals(std::string_view message);
// Whether a signal asked to stop. From any thread.
bool StopRequested();

}  // namespace forebay
