#include "forebay/base/process/parallel.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/process/cores.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/base/trace.h"

namespace forebay {
namespace {

// Longer than the gap between two operators of a layer, shorter than what anyone would notice as
// load.
constexpr std::chrono::microseconds kSpinTime{50};

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::string name, std::function<void()> thread_init) {
  FOREBAY_CHECK(num_threads >= 1);
  // With more threads than cores, whoever spins keeps a core from one that has work.
  may_spin_ = num_threads <= NumUsableCores();
  for (int thread = 1; thread < num_threads; ++thread) {
    absl::StatusOr<std::thread> worker =
        StartThread("computing", [this, thread, name, thread_init] {
          // The kernel keeps 15 characters.
          const std::string thread_name = (name + "-" + std::to_string(thread)).substr(0, 15);
          pthread_setname_np(pthread_self(), thread_name.c_str());
          NameThreadInTraces(thread_name);
          if (thread_init) thread_init();
          WorkerLoop(thread);
        });
    if (!worker.ok()) break;
    workers_.push_back(*std::move(worker));
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  Wake(num_sleeping_workers_, start_);
  for (std::thread& worker : workers_) worker.join();
}

// The sleeper announces itself and then looks at `ready`; the waker makes `ready` true and then
// looks for sleepers. All four are sequentially consistent, so at least one sees the other.
template <typename Ready>
void ThreadPool::AwaitSpinning(const Ready& ready, std::atomic<int>& num_sleeping,
                               std::condition_variable& wake) {
  if (may_spin_) {
    const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int spin = 0; spin < 16; ++spin) {
        if (ready()) return;
        CpuRelax();
      }
      // The thread that is waited for may have been put on this very core.
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < give_up);
  }
  std::unique_lock lock(mutex_);
  num_sleeping.fetch_add(1);
  wake.wait(lock, ready);
  num_sleeping.fetch_sub(1);
}

void ThreadPool::Wake(std::atomic<int>& num_sleeping, std::condition_variable& wake) {
  if (num_sleeping.load() == 0) return;
  // A sleeper holds the mutex from its last look at `ready` until it sleeps.
  { std::lock_guard lock(mutex_); }
  wake.notify_all();
}

void ThreadPool::TakeTasks(int thread) {
  uint64_t tickets = tickets_.load();
  while (static_cast<uint32_t>(tickets) != 0) {
    if (!tickets_.compare_exchange_weak(tickets, tickets - 1)) continue;
    const int64_t index = num_tasks_ - static_cast<int64_t>(static_cast<uint32_t>(tickets));
    trampoline_(task_, index, thread);
    if (unfinished_.fetch_sub(1) == 1) Wake(caller_sleeping_, done_);
    tickets = tickets_.load();
  }
}

void ThreadPool::Run(int64_t num_tasks, Trampoline trampoline, const void* task) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t index = 0; index < num_tasks; ++index) trampoline(task, index, 0);
    return;
  }
  FOREBAY_CHECK(unfinished_.load() == 0);
  FOREBAY_CHECK(num_tasks <= int64_t{UINT32_MAX});
  trampoline_ = trampoline;
  task_ = task;
  num_tasks_ = num_tasks;
  unfinished_.store(num_tasks);
  const uint64_t call = (tickets_.load() >> 32) + 1;
  tickets_.store(call << 32 | static_cast<uint64_t>(num_tasks));
  Wake(num_sleeping_workers_, start_);
  TakeTasks(0);
  AwaitSpinning([this] { return unfinished_.load() == 0; }, caller_sleeping_, done_);
}

void ThreadPool::WorkerLoop(int thread) {
  for (;;) {
    AwaitSpinning(
        [this] { return stopping_.load() || static_cast<uint32_t>(tickets_.load()) != 0; },
        num_sleeping_workers_, start_);
    if (stopping_.load()) return;
    TakeTasks(thread);
  }
}

}  // namespace forebay
