// Taking and giving back allocate nothing.
#include <memory>

#include "forebay/memory/pinned_pool.h"
#include "forebay/tests/allocation_counter.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(PinnedPoolAllocation, TakingAndGivingBackAllocateNothing) {
  MemoryBudget budget(0);
  PinnedPoolOptions options;
  options.purpose = "pool";
  options.buffer_bytes = 4096;
  options.num_buffers = 3;
  auto pool = PinnedPool::Create(&budget, options);
  ASSERT_TRUE(pool.ok());
  const int64_t before = num_allocations.load();
  for (int round = 0; round < 10; ++round) {
    PinnedLease first = (*pool)->Take();
    const PinnedLease second = (*pool)->Take();
    const PinnedLease third = (*pool)->Take();
    first.Reset();
    const std::optional<PinnedLease> again = (*pool)->TryTake();
  }
  EXPECT_EQ(num_allocations.load(), before);
}

TEST(PinnedPoolAllocation, TheCounterCounts) {
  const int64_t before = num_allocations.load();
  const auto value = std::make_unique<int>(1);
  EXPECT_EQ(num_allocations.load(), before + *value);
}

}  // namespace
}  // namespace forebay
