// Ranks that are threads of one process, over shared memory. With a seed they are slow at random
// places, and a rank can be made to fail: for tests of what is above.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "forebay/collective/transport.h"

namespace forebay {

enum class ThreadFaultKind : uint8_t {
  kDies,   // the rank is gone: the others find its end closed
  kHangs,  // it does nothing more until it is stopped
  kDrops,  // what it sends from then on is lost
};

struct ThreadFault {
  ThreadFaultKind kind = ThreadFaultKind::kDies;
  int rank = 0;
  int64_t exchange = 0;  // of the rank, from 0, before which it happens
};

struct ThreadRanksOptions {
  int num_ranks = 1;
  // Not 0: sends in small chunks, to one rank and another in an order that the seed decides, and
  // pauses between them.
  uint64_t seed = 0;
  std::vector<ThreadFault> faults;
};

// [num_ranks]; the transport of rank r is at r, for one thread each.
std::vector<std::unique_ptr<Transport>> CreateThreadRanks(const ThreadRanksOptions& options);

}  // namespace forebay
