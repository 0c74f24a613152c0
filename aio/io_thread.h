// A thread of an engine. Unlike others it can be left behind: a system call on a device that
// stalled may never return, and the engine has to end all the same.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace forebay {

// Owned by one thread (the engine's destructor); the Call guard is used on the thread itself.
class IoThread {
 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool in_call = false;
    bool ended = false;
    bool left_behind = false;
  };

 public:
  // What the thread's function brackets its blocking calls with. Between Begin and End it may touch
  // only what its `keep_alive` owns, since the engine may be gone.
  class Calls {
   public:
    void Begin();
    // False when the engine is gone: return at once.
    bool End();

   private:
    friend class IoThread;
    explicit Calls(State* state) : state_(state) {}
    State* const state_;
  };

  // Runs `work` with signals blocked, so that Ctrl-C reaches the program's own threads and a
  // file size limit gives EFBIG instead of a deadly SIGXFSZ. `keep_alive` lives as long as the
  // thread does. The errors of StartThread.
  static absl::StatusOr<IoThread> Start(const std::string& name, std::function<void(Calls&)> work,
                                        std::shared_ptr<void> keep_alive);
  IoThread(IoThread&&) = default;
  IoThread& operator=(IoThread&&) = delete;

  // Waits for the end of the thread, which must have been told to end. With `may_leave`, a thread
  // that is still in a call after a moment is left there instead.
  void End(bool may_leave);

 private:
  IoThread() : state_(std::make_shared<State>()) {}
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace forebay
