// Calls take no memory: what they need was taken when the communicator was made.
#include <thread>
#include <vector>

#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/collective/rank_group.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

void CallEach(Communicator& ranks, std::span<float> values, std::span<const int64_t> offsets,
              std::span<const int64_t> byte_offsets) {
  const bool all_went_well =
      ranks.AllReduce(values).ok() && ranks.ReduceScatter(values, offsets).ok() &&
      ranks.AllGather(std::as_writable_bytes(values), byte_offsets).ok() &&
      ranks.Broadcast(std::as_writable_bytes(values), 1).ok() && ranks.Barrier().ok();
  EXPECT_TRUE(all_went_well);
}

TEST(CollectiveAllocations, ThereAreNoneOverSockets) {
  int64_t num_by_calls = -1;
  RunOnRanks({.transport = TransportOfTests::kSockets, .num_ranks = 2}, [&](Communicator& ranks) {
    std::vector<float> values(5000, 1.0F);
    const std::vector<int64_t> offsets = EvenParts(5000, 2);
    const std::vector<int64_t> byte_offsets = EvenParts(20000, 2);
    // The first calls may allocate, on both ranks.
    CallEach(ranks, values, offsets, byte_offsets);
    EXPECT_TRUE(ranks.Barrier().ok());
    const int64_t before = num_allocations;
    for (int i = 0; i < 10; ++i) CallEach(ranks, values, offsets, byte_offsets);
    if (ranks.rank() == 0) num_by_calls = num_allocations - before;
    EXPECT_TRUE(ranks.Barrier().ok());
  });
  EXPECT_EQ(num_by_calls, 0);
}

}  // namespace
}  // namespace forebay
