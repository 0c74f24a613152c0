#include "forebay/device/emulation/grid.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <vector>

#include "forebay/device/emulation/block.h"
#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {
namespace {

constexpr size_t kSharedAlignment = 256;
// TSan gives a new thread the number of one that was destroyed, and takes their accesses for one
// thread's. They are kept for so long that grids of different streams have different numbers; each
// is some ten mappings, of which a process has 65,530.
constexpr size_t kMostRetired = 2048;

size_t NumThreads(dim3 shape) {
  return size_t{shape.x} * shape.y * shape.z;
}

uint3 PlaceOf(size_t index, dim3 shape) {
  return {static_cast<unsigned>(index % shape.x), static_cast<unsigned>(index / shape.x % shape.y),
          static_cast<unsigned>(index / shape.x / shape.y)};
}

// One launch.
class Grid {
 public:
  Grid(dim3 grid, dim3 block, size_t dynamic_bytes)
      : grid_(grid), block_(block), num_threads_(NumThreads(block)), dynamic_bytes_(dynamic_bytes) {
    constexpr size_t kStaticBytes = size_t{48} << 10;
    const size_t bytes =
        dynamic_bytes + kStaticBytes + (2 + kMostSharedSites) * kRedZoneBytes + kSharedAlignment;
    shared_mapping_ = bytes / kSharedAlignment * kSharedAlignment;
  }

  void Run() {
    const std::vector<size_t> order = OrderOfBlocks();
    // No memory of threads that TSan knows is used again, or freed, before the end: that would
    // order them. The other blocks take turns in the last place.
    const size_t num_watched = NumWatched(order.size());
    std::deque<Block> blocks(num_watched + 1);
    for (size_t i = 0; i < order.size(); ++i) {
      const bool is_watched = i < num_watched;
      Block& block = blocks[is_watched ? i : num_watched];
      Prepare(block, PlaceOf(order[i], grid_), is_watched);
      RunBlock(block);
    }
    {
      const TsanAs as(TheMachine().stream_tsan);
      Acquire(TheMachine().done);  // what comes after the kernel comes after all its threads
    }
    for (size_t i = 0; i < blocks.size(); ++i) End(blocks[i], i < num_watched);
  }

 private:
  std::vector<size_t> OrderOfBlocks() const {
    std::vector<size_t> order(NumThreads(grid_));
    std::iota(order.begin(), order.end(), size_t{0});
    if (TheOptions().order == Order::kDescending) std::reverse(order.begin(), order.end());
    if (TheOptions().order == Order::kRandom) ShuffleRange(order.begin(), order.size());
    return order;
  }

  size_t NumWatched(size_t num_blocks) const {
    if (!HasTsan()) return 0;
    const size_t fitting = TheOptions().most_tsan_threads / num_threads_;
    return std::min(num_blocks, std::max<size_t>(1, fitting));
  }

  void Allocate(Block& block) const {
    block.threads.resize(num_threads_);
    for (Thread& thread : block.threads) thread.copies.reserve(kMostCopies);
    block.warps.resize((num_threads_ + kLanes - 1) / kLanes);
    block.thread_of_rank.resize(num_threads_);
    block.rank_of_thread.resize(num_threads_);
    block.shared_sites.reserve(kMostSharedSites);
    block.shared = static_cast<char*>(std::aligned_alloc(kSharedAlignment, shared_mapping_));
    if (block.shared == nullptr) Die("there is no memory for a block's shared memory");
  }

  void Prepare(Block& block, uint3 place, bool is_watched) const {
    if (block.shared == nullptr) Allocate(block);
    block.dynamic_bytes = block.shared_bytes = dynamic_bytes_;
    block.shared_sites.clear();
    block.num_waiting = block.num_votes = block.turn = 0;
    Unpoison(block.shared, shared_mapping_);
    std::memset(block.shared, 0xff, shared_mapping_);
    Poison(block.shared, shared_mapping_);
    Unpoison(block.shared + kRedZoneBytes, dynamic_bytes_);
    block.shared_used = kRedZoneBytes + dynamic_bytes_;
    for (size_t i = 0; i < num_threads_; ++i) {
      Thread& thread = block.threads[i];
      thread.state = ThreadState::kRunnable;
      thread.fiber = nullptr;
      thread.copies.clear();
      thread.copy_group = 0;
      thread.linear = static_cast<int>(i);
      thread.thread = PlaceOf(i, block_);
      thread.block = place;
      thread.block_dim = block_;
      thread.grid_dim = grid_;
      thread.tsan = TheMachine().stream_tsan;
      if (!is_watched) continue;
      const TsanAs as(TheMachine().stream_tsan);  // which begins it
      thread.tsan = __tsan_create_fiber(0);
    }
  }

  void End(Block& block, bool is_watched) const {
    if (block.shared == nullptr) return;
    Unpoison(block.shared, shared_mapping_);
    std::free(block.shared);
    if (!is_watched) return;
    for (const Thread& thread : block.threads) TheMachine().retired.push_back(thread.tsan);
  }

  const dim3 grid_;
  const dim3 block_;
  const size_t num_threads_;
  const size_t dynamic_bytes_;
  size_t shared_mapping_ = 0;
};

}  // namespace

cudaError_t CheckShape(dim3 grid, dim3 block, size_t shared_bytes) {
  constexpr unsigned kMostX = 0x7fffffffu;
  constexpr unsigned kMostYz = 65535;
  const size_t threads = NumThreads(block);
  if (threads == 0 || threads > kMostThreads || block.z > 64 || NumThreads(grid) == 0 ||
      grid.x > kMostX || grid.y > kMostYz || grid.z > kMostYz ||
      shared_bytes > TheOptions().most_shared_bytes) {
    return cudaErrorInvalidConfiguration;
  }
  if (threads % kLanes != 0) Die("a block has %zu threads, which are no whole warps", threads);
  return cudaSuccess;
}

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  static uint64_t num_grids = 0;
  const TsanAs as_driver(TsanDriver());
  Machine& machine = TheMachine();
  machine.random = Random(TheOptions().seed * 0x9E3779B97F4A7C15u + num_grids++);
  machine.body = &thread;
  machine.stream_tsan = as_driver.before();
  const std::unique_ptr<char> done(new char);
  machine.done = done.get();
  Grid(grid, block, shared_bytes).Run();
  if (!HasTsan()) return;
  for (; machine.retired.size() > kMostRetired; machine.retired.pop_front()) {
    __tsan_destroy_fiber(machine.retired.front());
  }
  machine.idle.clear();
  machine.fibers.clear();
}

}  // namespace forebay::emulation
