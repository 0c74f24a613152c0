#include "forebay/tools/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"

namespace forebay {
namespace {

constexpr int kEndedBySignal = 130;

std::atomic<bool> stop_requested{false};

// Those that whoever started the process had not told it to ignore, as nohup does.
sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    const bool is_ignored =
        ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!is_ignored) sigaddset(&signals, signal);
  }
  return signals;
}

void AwaitSignals(const sigset_t& signals, std::string_view message) {
  ::pthread_setname_np(::pthread_self(), "signals");
  int signal = 0;
  while (::sigwait(&signals, &signal) == 0) {
    if (stop_requested.exchange(true)) ::_exit(kEndedBySignal);
    // Nothing can be done about an error here.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  }
}

}  // namespace

absl::Status CatchStopSignals(std::string_view message) {
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = StopSignals();
  sigset_t blocked_before;
  // Of this thread, and of all that it starts.
  ::pthread_sigmask(SIG_BLOCK, &signals, &blocked_before);
  absl::StatusOr<std::thread> thread = StartThread(
      "the signals that stop it", [signals, message] { AwaitSignals(signals, message); });
  if (!thread.ok()) {
    // Nobody waits for them: they end the process as they would have.
    ::pthread_sigmask(SIG_SETMASK, &blocked_before, nullptr);
    return thread.status();
  }
  thread->detach();
  return absl::OkStatus();
}

bool StopRequested() {
  return stop_requested.load(std::memory_order_relaxed);
}

}  // namespace forebay
