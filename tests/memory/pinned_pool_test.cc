#include "forebay/memory/pinned_pool.h"

#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

std::unique_ptr<PinnedPool> MakePool(MemoryBudget* budget, int64_t buffer_bytes, int num_buffers) {
  auto pool = PinnedPool::Create(budget, "pool", buffer_bytes, num_buffers);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(PinnedPool, LendsEachBufferOnce) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, 5000, 3);
  EXPECT_EQ(pool->buffer_bytes(), 8192);
  EXPECT_EQ(budget.used_bytes(), 3 * 8192);
  std::vector<PinnedLease> leases;
  std::set<std::byte*> addresses;
  for (int i = 0; i < 3; ++i) {
    leases.push_back(pool->Take());
    EXPECT_EQ(leases.back().bytes().size(), 8192u);
    addresses.insert(leases.back().bytes().data());
  }
  EXPECT_EQ(addresses.size(), 3u);
  EXPECT_FALSE(pool->TryTake().has_value());
}

TEST(PinnedPool, GetsABufferBackWhenItsLeaseEnds) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, 4096, 1);
  { const PinnedLease lease = pool->Take(); }
  EXPECT_TRUE(pool->TryTake().has_value());
}

TEST(PinnedPool, ALeaseMovesItsRight) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, 4096, 2);
  PinnedLease first = pool->Take();
  PinnedLease second = pool->Take();
  second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_TRUE(second.valid());
  EXPECT_TRUE(pool->TryTake().has_value()) << "the lease that was overwritten gave its buffer back";
}

TEST(PinnedPool, TakersWaitUntilABufferIsGivenBack) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, 4096, 2);
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  std::atomic<int> lent{0};
  std::atomic<int> lent_max{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const PinnedLease lease = pool->Take();
        const int now = ++lent;
        int seen = lent_max.load();
        while (now > seen && !lent_max.compare_exchange_weak(seen, now)) {
        }
        lease.bytes()[0] = std::byte{1};  // a data race here would show under TSan
        --lent;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(lent_max.load(), 2);
}

TEST(PinnedPool, BeyondTheBudgetIsAnError) {
  MemoryBudget budget(4096);
  const auto pool = PinnedPool::Create(&budget, "pool", 4096, 2);
  EXPECT_EQ(ExitCodeOf(pool.status()), ExitCode::kOutOfMemory);
}

TEST(PinnedPoolDeathTest, EndingBeforeItsLeasesIsABug) {
  MemoryBudget budget(0);
  EXPECT_DEATH(
      {
        auto pool = MakePool(&budget, 4096, 1);
        const PinnedLease lease = pool->Take();
        pool.reset();
      },
      "internal error");
}

}  // namespace
}  // namespace forebay
