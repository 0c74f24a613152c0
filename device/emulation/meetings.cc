// Barriers of a block, and operations of a warp.
#include "forebay/device/emulation/block.h"
#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {
namespace {

bool IsIn(uint32_t mask, int lane) {
  return (mask >> lane & 1) != 0;
}

// Whether all lanes of `mask` wait for this operation; what each has brought.
bool AllMet(const Block& block, size_t first, uint32_t mask, const Thread& self,
            void* (&brought)[kLanes]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!IsIn(mask, lane)) continue;
    const Thread& other = block.threads[first + static_cast<size_t>(lane)];
    if (other.state != ThreadState::kAtMeeting || other.mask != mask ||
        other.operation != self.operation) {
      return false;
    }
    if (other.site.line != self.site.line || other.site.file != self.site.file) {
      Die("lanes of a warp meet at different places: %s at %s:%d and %s:%d", self.operation,
          self.site.file, self.site.line, other.site.file, other.site.line);
    }
    brought[lane] = other.brought;
  }
  return true;
}

}  // namespace

int SyncThreads(bool predicate, Site site) {
  Thread& self = Self();
  Block& block = *TheMachine().block;
  self.site = site;
  self.state = ThreadState::kAtBarrier;
  Release(&block.barriers[0]);
  block.num_votes += predicate ? 1 : 0;
  if (++block.num_waiting == block.num_alive) ReleaseBarrier();
  Yield();
  Acquire(&block.barriers[1 + block.turn % 2]);
  return block.last_votes;
}

void Meet(uint32_t mask, const char* operation, void* brought, Complete complete,
          bool orders_memory, Site site) {
  Thread& self = Self();
  Block& block = *TheMachine().block;
  const int lane = self.linear % kLanes;
  const auto first = static_cast<size_t>(self.linear - lane);
  if (!IsIn(mask, lane)) {
    Die("%s at %s:%d: lane %d is not in its own mask %08x", operation, site.file, site.line, lane,
        mask);
  }
  self.mask = mask;
  self.operation = operation;
  self.brought = brought;
  self.site = site;
  self.state = ThreadState::kAtMeeting;
  char* const warp = &block.warps[first / kLanes];
  if (orders_memory) Release(warp);
  void* of_lanes[kLanes] = {};
  if (AllMet(block, first, mask, self, of_lanes)) {
    if (complete != nullptr) complete(of_lanes, mask);
    if (orders_memory) Acquire(warp);
    for (int i = 0; i < kLanes; ++i) {
      if (!IsIn(mask, i)) continue;
      Thread& other = block.threads[first + static_cast<size_t>(i)];
      if (orders_memory) Release(&other.woken);
      MakeRunnable(other);
    }
  }
  Yield();
  if (orders_memory) Acquire(&self.woken);
}

// ---- Shuffles and votes ------------------------------------------------------------------------

namespace {

struct Shuffled {
  uint64_t in;
  uint64_t out;
  int from;  // lane
  Site site;
};

void CompleteShuffle(void* const* of_lanes, uint32_t mask) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (of_lanes[lane] == nullptr) continue;
    auto& to = *static_cast<Shuffled*>(of_lanes[lane]);
    if (of_lanes[to.from] == nullptr) {
      Die("a shuffle at %s:%d: lane %d reads lane %d, which is not in the mask %08x", to.site.file,
          to.site.line, lane, to.from, mask);
    }
    to.out = static_cast<const Shuffled*>(of_lanes[to.from])->in;
  }
}

// The lane that a lane reads; its own where there is none.
int SourceOf(ShuffleKind kind, int lane, int operand, int width) {
  const int first = lane / width * width;
  const int in_group = lane - first;
  switch (kind) {
    case ShuffleKind::kIndex:
      return first + (operand & (width - 1));
    case ShuffleKind::kUp:
      return in_group >= operand ? lane - operand : lane;
    case ShuffleKind::kDown:
      return in_group + operand < width ? lane + operand : lane;
    case ShuffleKind::kXor:
      return (in_group ^ operand) < width ? first + (in_group ^ operand) : lane;
  }
  return lane;
}

struct Vote {
  bool in;
  uint32_t out;
};

void CompleteBallot(void* const* of_lanes, uint32_t /*mask*/) {
  uint32_t ballot = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (of_lanes[lane] != nullptr && static_cast<const Vote*>(of_lanes[lane])->in) {
      ballot |= uint32_t{1} << lane;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (of_lanes[lane] != nullptr) static_cast<Vote*>(of_lanes[lane])->out = ballot;
  }
}

}  // namespace

uint64_t ShuffleBits(ShuffleKind kind, uint32_t mask, uint64_t bits, int operand, int width,
                     Site site) {
  // One address for each kind: operations are compared by it.
  static const char* const kNames[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                       "__shfl_xor_sync"};
  Shuffled shuffled = {bits, 0, SourceOf(kind, Self().linear % kLanes, operand, width), site};
  Meet(mask, kNames[static_cast<int>(kind)], &shuffled, &CompleteShuffle, /*orders_memory=*/false,
       site);
  return shuffled.out;
}

uint32_t Ballot(uint32_t mask, bool predicate, Site site) {
  Vote vote = {predicate, 0};
  Meet(mask, "a vote", &vote, &CompleteBallot, /*orders_memory=*/false, site);
  return vote.out;
}

}  // namespace forebay::emulation
