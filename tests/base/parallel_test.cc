#include "forebay/base/process/parallel.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "forebay/tests/without_threads.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class ThreadPoolOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOf, ::testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolOf, RunsEveryTaskOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t num_tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
    pool.ParallelFor(num_tasks, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, DoesAllWithTheThreadsThatCanBeHad) {
  std::vector<int> runs(100);
  int num_threads = 0;
  const bool is_forbidden = RunWithoutThreads([&] {
    ThreadPool pool(4);
    num_threads = pool.num_threads();
    pool.ParallelFor(100, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(num_threads, 1);
  EXPECT_EQ(runs, std::vector<int>(100, 1));
}

TEST_P(ThreadPoolOf, WhatTasksWroteIsVisibleAfterwards) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> squares(257);  // not atomic: the call itself must order the accesses
  for (int repeat = 1; repeat <= 200; ++repeat) {
    pool.ParallelFor(257, [&](int64_t i) { squares[static_cast<size_t>(i)] = i * i * repeat; });
    for (int64_t i = 0; i < 257; ++i) ASSERT_EQ(squares[static_cast<size_t>(i)], i * i * repeat);
  }
}

TEST_P(ThreadPoolOf, ManyShortCallsInARowKeepTheirTasksApart) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  for (int64_t call = 0; call < 20'000; ++call) {
    pool.ParallelFor(4, [&sum, call](int64_t i) { sum.fetch_add(call * 4 + i); });
  }
  const int64_t num_tasks = 80'000;
  EXPECT_EQ(sum.load(), num_tasks * (num_tasks - 1) / 2);
}

TEST_P(ThreadPoolOf, WakesThreadsThatWentToSleep) {
  ThreadPool pool(GetParam());
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> runs{0};
    pool.ParallelFor(64, [&](int64_t) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), 64);
  }
}

TEST_P(ThreadPoolOf, ThreadNumbersAreNeverSharedByTwoTasksAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> active(static_cast<size_t>(GetParam()));
  std::atomic<bool> shared{false};
  pool.ParallelForWithThread(500, [&](int64_t, int thread) {
    if (active.at(static_cast<size_t>(thread)).fetch_add(1) != 0) shared = true;
    std::this_thread::yield();
    active[static_cast<size_t>(thread)].fetch_sub(1);
  });
  EXPECT_FALSE(shared.load());
}

TEST(ThreadPool, OneThreadTakesTasksInOrder) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.ParallelFor(5, [&](int64_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, TasksReallyRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  // Each task waits for the other: one thread alone would never finish.
  pool.ParallelFor(2, [&](int64_t) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPool, InitialisesEveryOtherThreadOnce) {
  std::mutex mutex;
  std::multiset<std::thread::id> initialised;
  {
    ThreadPool pool(4, "init", [&] {
      std::lock_guard lock(mutex);
      initialised.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(pool.num_threads(), 4);
  }
  EXPECT_EQ(initialised.size(), 3u);
  EXPECT_EQ(std::set(initialised.begin(), initialised.end()).size(), 3u);
  EXPECT_EQ(initialised.count(std::this_thread::get_id()), 0u);
}

TEST(ThreadPoolDeathTest, ACallFromWithinATaskIsABug) {
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(2, [&](int64_t) { pool.ParallelFor(2, [](int64_t) {}); });
      },
      "internal error");
}

}  // namespace
}  // namespace forebay
