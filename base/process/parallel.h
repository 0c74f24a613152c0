// A fixed pool of compute threads with one primitive: run tasks 0..n-1 and wait.
//
// Work is cut into tasks by its shape alone, never by the number of threads, and no task's result
// depends on which thread ran it: so results are the same bits for every thread count.
//
// Made for thousands of short calls a second: between calls the threads spin for some tens of
// microseconds before they sleep, and a call never waits for a thread that took none of its tasks
// (docs/performance.md, "Parallel loops").
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace forebay {

// Thread-compatible: one ParallelFor at a time (nested or concurrent calls are a bug).
class ThreadPool {
 public:
  // `num_threads` includes the caller of ParallelFor. `thread_init` runs once on every other
  // thread, before its first task. Where the system has no more threads to give, the pool has
  // fewer. Requires: num_threads >= 1.
  explicit ThreadPool(int num_threads, std::string name = "forebay",
                      std::function<void()> thread_init = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i) for every i in [0, num_tasks) on the pool's threads and the caller's; returns
  // when all are done. Tasks are taken in order, so the first ones start first. No allocation:
  // `task` is borrowed for the call. Requires: num_tasks < 2^32.
  template <typename Task>
  void ParallelFor(int64_t num_tasks, const Task& task) {
    Run(
        num_tasks, [](const void* t, int64_t i, int) { (*static_cast<const Task*>(t))(i); }, &task);
  }
  // As above, with task(i, thread); `thread` in [0, num_threads) names per-thread scratch memory.
  template <typename Task>
  void ParallelForWithThread(int64_t num_tasks, const Task& task) {
    Run(
        num_tasks,
        [](const void* t, int64_t i, int thread) { (*static_cast<const Task*>(t))(i, thread); },
        &task);
  }

 private:
  using Trampoline = void (*)(const void* task, int64_t index, int thread);
  void Run(int64_t num_tasks, Trampoline trampoline, const void* task);
  void WorkerLoop(int thread);
  void TakeTasks(int thread);
  // Waits until `ready` holds: spins first, then sleeps on `wake`, announced in `num_sleeping`.
  template <typename Ready>
  void AwaitSpinning(const Ready& ready, std::atomic<int>& num_sleeping,
                     std::condition_variable& wake);
  void Wake(std::atomic<int>& num_sleeping, std::condition_variable& wake);

  std::vector<std::thread> workers_;
  bool may_spin_ = true;

  // High half: the number of the call; low half: its tasks not yet taken. One word, so that a
  // thread that comes late cannot take a task of a call that it did not see.
  std::atomic<uint64_t> tickets_{0};
  std::atomic<int64_t> unfinished_{0};
  std::atomic<bool> stopping_{false};
  // The current call. Written before its tickets, read only by those that hold one.
  Trampoline trampoline_ = nullptr;
  const void* task_ = nullptr;
  int64_t num_tasks_ = 0;

  std::mutex mutex_;  // for sleeping alone
  std::condition_variable start_;
  std::condition_variable done_;
  std::atomic<int> num_sleeping_workers_{0};
  std::atomic<int> caller_sleeping_{0};
};

}  // namespace forebay
