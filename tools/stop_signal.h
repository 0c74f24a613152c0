// Ctrl-C, SIGTERM and SIGHUP as a request to stop: the first one asks, the second ends the process
// at once with 130.
#pragma once

#include <string_view>

namespace forebay {

// Installs the handlers for the rest of the process, and ignores SIGPIPE: a closed pipe must not
// kill a run. `message` is written to stderr at the first signal; it must live for ever.
void CatchStopSignals(std::string_view message);
// Whether a signal asked to stop. Async-signal-safe to be called anywhere, from any thread.
bool StopRequested();

}  // namespace forebay
