#include "forebay/memory/pinned_pool.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

PinnedPoolOptions Options(int64_t buffer_bytes, int num_buffers) {
  PinnedPoolOptions options;
  options.purpose = "pool";
  options.buffer_bytes = buffer_bytes;
  options.num_buffers = num_buffers;
  return options;
}

std::unique_ptr<PinnedPool> MakePool(MemoryBudget* budget, const PinnedPoolOptions& options) {
  auto pool = PinnedPool::Create(budget, options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

void AwaitWaiting(const PinnedPool& pool, int num_waiting) {
  while (pool.stats().num_waiting < num_waiting) std::this_thread::yield();
}

TEST(PinnedPool, LendsEachBufferOnce) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, Options(5000, 3));
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
  const auto pool = MakePool(&budget, Options(4096, 1));
  { const PinnedLease lease = pool->Take(); }
  EXPECT_TRUE(pool->TryTake().has_value());
}

TEST(PinnedPool, ALeaseMovesItsRight) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, Options(4096, 2));
  PinnedLease first = pool->Take();
  PinnedLease second = pool->Take();
  second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_TRUE(second.valid());
  EXPECT_TRUE(pool->TryTake().has_value()) << "the lease that was overwritten gave its buffer back";
}

// As few buffers as the bound allows: one fewer, and all could wait for each other.
TEST(PinnedPool, ManyTakersWithSeveralLeasesEachNeverDeadlock) {
  constexpr int kTakers = 12;
  constexpr int kHeld = 3;
  constexpr int kBuffers = kTakers * (kHeld - 1) + 1;
  constexpr int kRounds = 200;
  MemoryBudget budget(0);
  PinnedPoolOptions options = Options(4096, kBuffers);
  options.num_takers = kTakers;
  options.max_held = kHeld;
  const auto pool = MakePool(&budget, options);
  std::atomic<int> shared_buffers{0};
  std::vector<std::thread> threads;
  for (int taker = 1; taker <= kTakers; ++taker) {
    threads.emplace_back([&, taker] {
      for (int round = 0; round < kRounds; ++round) {
        PinnedLease leases[kHeld];
        for (PinnedLease& lease : leases) {
          lease = pool->Take();
          std::ranges::fill(lease.bytes().first(64), std::byte(taker));
          std::this_thread::yield();
        }
        for (const PinnedLease& lease : leases) {
          const bool mine = std::ranges::all_of(lease.bytes().first(64),
                                                [&](std::byte b) { return b == std::byte(taker); });
          if (!mine) ++shared_buffers;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared_buffers, 0) << "two leases on one buffer";
  const PinnedPoolStats stats = pool->stats();
  EXPECT_EQ(stats.num_takes, int64_t{kTakers} * kHeld * kRounds);
  EXPECT_LE(stats.max_lent, kBuffers);
  EXPECT_GE(stats.max_lent, kHeld);
  EXPECT_EQ(stats.num_waiting, 0);
}

TEST(PinnedPool, WhoDoesNotWaitDoesNotOvertakeThoseThatDo) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, Options(4096, 1));
  for (int round = 0; round < 20; ++round) {
    std::optional<PinnedLease> held = pool->Take();
    std::atomic<bool> may_end{false};
    std::thread waiter([&] {
      const PinnedLease lease = pool->Take();
      may_end.wait(false);
    });
    AwaitWaiting(*pool, 1);
    held.reset();
    EXPECT_FALSE(pool->TryTake().has_value()) << "the buffer is the waiter's, awake or not";
    may_end = true;
    may_end.notify_one();
    waiter.join();
  }
}

TEST(PinnedPool, ServesThoseThatWaitInTurn) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, Options(4096, 1));
  std::optional<PinnedLease> held = pool->Take();
  std::vector<int> order;  // written under the only lease
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&, i] {
      const PinnedLease lease = pool->Take();
      order.push_back(i);
    });
    AwaitWaiting(*pool, i + 1);
  }
  held.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(PinnedPool, CountsWaitsAndTheLongest) {
  MemoryBudget budget(0);
  const auto pool = MakePool(&budget, Options(4096, 2));
  std::optional<PinnedLease> first = pool->Take();
  const PinnedLease second = pool->Take();
  EXPECT_EQ(pool->stats().num_waits, 0);
  std::thread waiter([&] { const PinnedLease lease = pool->Take(); });
  AwaitWaiting(*pool, 1);
  constexpr double kWaitS = 0.02;
  std::this_thread::sleep_for(std::chrono::duration<double>(kWaitS));
  first.reset();
  waiter.join();
  const PinnedPoolStats stats = pool->stats();
  EXPECT_EQ(stats.num_takes, 3);
  EXPECT_EQ(stats.num_waits, 1);
  EXPECT_GE(stats.longest_wait_s, kWaitS);
  EXPECT_EQ(stats.max_lent, 2);
}

TEST(PinnedPool, PiecesForTheIoEngineHoldWholeBuffers) {
  MemoryBudget budget(0);
  // The third buffer lies across the last whole 2 MiB.
  const auto pool = MakePool(&budget, Options(3 << 20, 3));
  const std::vector<std::span<std::byte>> pieces = pool->IoPieces();
  std::vector<PinnedLease> leases;
  for (int i = 0; i < 3; ++i) {
    leases.push_back(pool->Take());
    const std::span<std::byte> buffer = leases.back().bytes();
    EXPECT_TRUE(std::ranges::any_of(pieces,
                                    [&](std::span<std::byte> piece) {
                                      return piece.data() <= buffer.data() &&
                                             buffer.data() + buffer.size() <=
                                                 piece.data() + piece.size();
                                    }))
        << "buffer " << i;
  }
}

TEST(PinnedPool, BeyondTheBudgetIsAnError) {
  MemoryBudget budget(4096);
  const auto pool = PinnedPool::Create(&budget, Options(4096, 2));
  EXPECT_EQ(ExitCodeOf(pool.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(pool.status()), testing::HasSubstr("'pool'"));
}

TEST(PinnedPoolDeathTest, EndingBeforeItsLeasesIsABug) {
  MemoryBudget budget(0);
  EXPECT_DEATH(
      {
        auto pool = MakePool(&budget, Options(4096, 1));
        const PinnedLease lease = pool->Take();
        pool.reset();
      },
      "internal error");
}

TEST(PinnedPoolDeathTest, TooFewBuffersForTheTakersIsABug) {
  MemoryBudget budget(0);
  PinnedPoolOptions options = Options(4096, 4);
  options.num_takers = 4;
  options.max_held = 2;
  EXPECT_DEATH(MakePool(&budget, options), "internal error");
}

}  // namespace
}  // namespace forebay
