#include "forebay/device/emulation/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {

ThreadPlace* running = nullptr;

Machine& TheMachine() {
  static auto* const machine = new Machine;
  return *machine;
}

namespace {

// A fiber whose thread is done runs another.
void RunThreads() {
  Machine& machine = TheMachine();
  Arrived(machine.main);
  for (;;) {
    Thread& thread = Self();
    (*machine.body)();
    if (!thread.copies.empty()) AwaitAsyncCopies(0);  // at the end they are done at the latest
    thread.state = ThreadState::kDone;
    Release(machine.done);
    Block& block = *machine.block;
    --block.num_alive;
    if (block.num_alive > 0 && block.num_waiting == block.num_alive) ReleaseBarrier();
    Switch(*thread.fiber, machine.main, machine.main);
  }
}

Fiber* TakeFiber() {
  Machine& machine = TheMachine();
  if (machine.idle.empty()) {
    return machine.fibers.emplace_back(std::make_unique<Fiber>(&RunThreads)).get();
  }
  Fiber* const fiber = machine.idle.back();
  machine.idle.pop_back();
  return fiber;
}

// Some threads run far ahead of others, as they would never do with a fresh choice at every step;
// half of the time whole warps.
void DrawRanks(std::vector<int>& threads) {
  Machine& machine = TheMachine();
  if (machine.random.Below(2) == 0) {
    ShuffleRange(threads.begin(), threads.size());
    return;
  }
  for (size_t i = threads.size() / kLanes; i > 1; --i) {
    const size_t j = machine.random.Below(i);
    if (j == i - 1) continue;
    const auto warp = [&](size_t k) {
      return threads.begin() + static_cast<ptrdiff_t>(k * kLanes);
    };
    std::swap_ranges(warp(i - 1), warp(i), warp(j));
  }
  for (size_t i = 0; i < threads.size(); i += kLanes) {
    ShuffleRange(threads.begin() + static_cast<ptrdiff_t>(i), kLanes);
  }
}

void Rank(Block& block) {
  std::vector<int>& threads = block.thread_of_rank;
  std::iota(threads.begin(), threads.end(), 0);
  if (TheOptions().order == Order::kDescending) std::reverse(threads.begin(), threads.end());
  if (TheOptions().order == Order::kRandom) DrawRanks(threads);
  std::fill(std::begin(block.runnable), std::end(block.runnable), 0);
  for (size_t rank = 0; rank < threads.size(); ++rank) {
    const auto thread = static_cast<size_t>(threads[rank]);
    block.rank_of_thread[thread] = static_cast<int>(rank);
    if (block.threads[thread].state == ThreadState::kRunnable) {
      block.runnable[rank / 64] |= uint64_t{1} << (rank % 64);
    }
  }
}

// The rank of the thread to run; -1: none can.
int TakeFirst(Block& block) {
  for (size_t word = 0; word < std::size(block.runnable); ++word) {
    if (block.runnable[word] == 0) continue;
    const int bit = std::countr_zero(block.runnable[word]);
    block.runnable[word] &= block.runnable[word] - 1;
    return static_cast<int>(word) * 64 + bit;
  }
  return -1;
}

bool WaitAlike(const Thread& a, const Thread& b) {
  return a.state == b.state && a.site.line == b.site.line && a.mask == b.mask;
}

[[noreturn]] void DieOfDeadlock(const Block& block) {
  const uint3 at = block.threads[0].block;
  std::fprintf(stderr, "emulated GPU: block (%u,%u,%u): no thread can go on\n", at.x, at.y, at.z);
  const Thread* last = nullptr;
  for (const Thread& thread : block.threads) {
    const bool is_as_last = last != nullptr && WaitAlike(*last, thread);
    last = &thread;
    if (is_as_last) continue;
    if (thread.state == ThreadState::kDone) {
      std::fprintf(stderr, "  from thread %d on: done\n", thread.linear);
      continue;
    }
    const bool at_barrier = thread.state == ThreadState::kAtBarrier;
    std::fprintf(stderr, "  from thread %d on: at %s (mask %08x), %s:%d\n", thread.linear,
                 at_barrier ? "__syncthreads" : thread.operation, thread.mask, thread.site.file,
                 thread.site.line);
  }
  std::abort();
}

}  // namespace

void Yield() {
  Machine& machine = TheMachine();
  Switch(*Self().fiber, machine.main, machine.main);
}

void MakeRunnable(Thread& thread) {
  Block& block = *TheMachine().block;
  thread.state = ThreadState::kRunnable;
  const int rank = block.rank_of_thread[static_cast<size_t>(thread.linear)];
  block.runnable[rank / 64] |= uint64_t{1} << (rank % 64);
}

void ReleaseBarrier() {
  Block& block = *TheMachine().block;
  Acquire(&block.barriers[0]);
  const Thread* first = nullptr;
  for (Thread& thread : block.threads) {
    if (thread.state != ThreadState::kAtBarrier) continue;
    if (first == nullptr) first = &thread;
    if (thread.site.line != first->site.line || thread.site.file != first->site.file) {
      Die("threads of a block wait at different barriers: %s:%d and %s:%d", first->site.file,
          first->site.line, thread.site.file, thread.site.line);
    }
    MakeRunnable(thread);
  }
  block.last_votes = block.num_votes;
  block.num_waiting = block.num_votes = 0;
  ++block.turn;
  Release(&block.barriers[1 + block.turn % 2]);
}

void RunBlock(Block& block) {
  Machine& machine = TheMachine();
  machine.block = &block;
  block.num_alive = static_cast<int>(block.threads.size());
  uint64_t steps_until_ranked = 0;
  while (block.num_alive > 0) {
    if (steps_until_ranked-- == 0) {
      Rank(block);
      steps_until_ranked = machine.random.Below(16 * block.threads.size());
    }
    const int rank = TakeFirst(block);
    if (rank < 0) DieOfDeadlock(block);
    const int number = block.thread_of_rank[static_cast<size_t>(rank)];
    Thread& thread = block.threads[static_cast<size_t>(number)];
    if (thread.fiber == nullptr) thread.fiber = TakeFiber();
    running = &thread;
    TsanBecome(thread.tsan);
    Switch(machine.main, *thread.fiber, machine.main);
    TsanBecome(TsanDriver());
    // Two of TSan's threads never use the same stack: that would be a race.
    if (thread.state == ThreadState::kDone && thread.tsan == machine.stream_tsan) {
      machine.idle.push_back(thread.fiber);
    }
  }
  running = nullptr;
}

}  // namespace forebay::emulation
