// A block of threads that runs: each is a fiber, and goes on until it waits at a barrier or meets
// lanes of its warp. To TSan each is a thread of its own, which barriers alone order: so a barrier
// that is missing is a race whatever the order was.
//
// Not for kernels (kernel_twin.h). Everything here happens under the emulation's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/device/emulation/fiber.h"
#include "forebay/device/emulation/kernel_twin.h"
#include "forebay/device/emulation/options.h"

namespace forebay::emulation {

inline constexpr int kLanes = 32;
inline constexpr int kMostThreads = 1024;
inline constexpr size_t kRedZoneBytes = 256;
// Vectors that are filled on a thread's behalf must not grow there: TSan watches the allocator.
inline constexpr size_t kMostCopies = 64;
inline constexpr size_t kMostSharedSites = 16;

enum class ThreadState : uint8_t { kRunnable, kAtBarrier, kAtMeeting, kDone };

// A cp.async that was not awaited.
struct PendingCopy {
  void* to;
  const void* from;
  int from_bytes;
  int size_bytes;
  int group;
};

struct Thread : ThreadPlace {
  ThreadState state = ThreadState::kRunnable;
  Fiber* fiber = nullptr;  // from its first step on
  void* tsan = nullptr;
  Site site = {};  // where it waits
  // At a meeting.
  uint32_t mask = 0;
  const char* operation = nullptr;
  void* brought = nullptr;
  char woken = 0;  // an address for TSan
  std::vector<PendingCopy> copies;
  int copy_group = 0;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<char> warps;  // addresses for TSan
  // The runnable thread of the least rank goes first.
  std::vector<int> thread_of_rank;
  std::vector<int> rank_of_thread;
  uint64_t runnable[kMostThreads / 64] = {};  // bits of ranks
  int num_alive = 0;
  // At the barrier.
  int num_waiting = 0;
  int num_votes = 0;
  int last_votes = 0;
  int turn = 0;
  // For TSan: arrived; left, in even and in odd turns.
  std::unique_ptr<char[]> barriers{new char[3]};
  // Shared memory: the dynamic part first, with red zones between.
  char* shared = nullptr;
  size_t shared_used = 0;    // of the mapping
  size_t shared_bytes = 0;   // that the kernel has
  size_t dynamic_bytes = 0;  // of them
  std::vector<std::pair<int, char*>> shared_sites;
};

// The machine that runs the grids of a process, one at a time.
struct Machine {
  Context main;
  Block* block = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::deque<void*> retired;    // TSan's threads of grids that have ended
  void* stream_tsan = nullptr;  // the stream that the grid is of
  char* done = nullptr;         // an address for TSan
  Random random{1};
};
Machine& TheMachine();

inline Thread& Self() {
  return static_cast<Thread&>(*running);
}

template <typename It>
void ShuffleRange(It begin, size_t size) {
  for (size_t i = size; i > 1; --i) {
    std::swap(begin[static_cast<ptrdiff_t>(i - 1)],
              begin[static_cast<ptrdiff_t>(TheMachine().random.Below(i))]);
  }
}

// Runs a block whose threads are set up to its end.
void RunBlock(Block& block);
// Leaves the running thread, whose state says what it waits for.
void Yield();
void MakeRunnable(Thread& thread);
// Of what the hardware reads or writes `size_bytes` of at once.
void DieUnlessAligned(const char* operation, const void* address, int size_bytes);
// All that are alive wait at the barrier: they go on.
void ReleaseBarrier();

}  // namespace forebay::emulation
