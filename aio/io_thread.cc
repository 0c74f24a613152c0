#include "forebay/aio/io_thread.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"

namespace forebay {
namespace {

// Blocks signals in the calling thread while it lives: threads made meanwhile inherit that. Those
// that an instruction of the thread itself causes stay, since the kernel would end the process
// without asking its handler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS}) sigdelset(&all, fault);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void IoThread::Calls::Begin() {
  const std::lock_guard lock(state_->mutex);
  state_->in_call = true;
}

bool IoThread::Calls::End() {
  const std::lock_guard lock(state_->mutex);
  state_->in_call = false;
  return !state_->left_behind;
}

absl::StatusOr<IoThread> IoThread::Start(const std::string& name, std::function<void(Calls&)> work,
                                         std::shared_ptr<void> keep_alive) {
  IoThread thread;
  const SignalsBlocked signals_blocked;
  FOREBAY_ASSIGN_OR_RETURN(
      thread.thread_,
      StartThread("reading and writing",
                  [state = thread.state_, work = std::move(work), kept = std::move(keep_alive)] {
                    Calls calls(state.get());
                    work(calls);
                    const std::lock_guard lock(state->mutex);
                    state->ended = true;
                    state->changed.notify_all();
                  }));
  ::pthread_setname_np(thread.thread_.native_handle(), name.c_str());
  return thread;
}

void IoThread::End(bool may_leave) {
  if (may_leave) {
    constexpr auto kMoment = std::chrono::milliseconds(200);
    std::unique_lock lock(state_->mutex);
    const auto done_or_stuck = [this] { return state_->ended; };
    while (!state_->changed.wait_for(lock, kMoment, done_or_stuck)) {
      if (!state_->in_call) continue;
      state_->left_behind = true;
      lock.unlock();
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

}  // namespace forebay
