#include "forebay/tools/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace forebay {
namespace {

constexpr int kEndedBySignal = 130;

// A signal handler can reach nothing but a global.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "must be usable in a signal handler");

void OnSignal(int) {
  if (stop_requested.exchange(true)) _exit(kEndedBySignal);
  static constexpr char kMessage[] = "\nforebay: stopping; once more ends at once\n";
  // Nothing can be done about an error here.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
}

}  // namespace

void CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool StopRequested() {
  return stop_requested.load(std::memory_order_relaxed);
}

}  // namespace forebay
