// Ctrl-C, SIGTERM and SIGHUP as a request to stop: the first one asks, the second ends the process
// at once with 130.
#pragma once

namespace forebay {

// Installs the handlers for the rest of the process, and ignores SIGPIPE: a closed pipe must not
// kill a run.
void CatchStopSignals();
// Whether a signal asked to stop. Async-signal-safe to be called anywhere, from any thread.
bool StopRequested();

}  // namespace forebay
