#include "forebay/measure/load/load_clock.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(BandwidthSeries, SortsBytesIntoIntervals) {
  BandwidthSeries series(3, 1);
  series.Add(0, 1);
  series.Add(kSecondNs - 1, 2);
  series.Add(kSecondNs, 4);
  series.Add(2 * kSecondNs + 5, 8);
  series.Add(100 * kSecondNs, 16);  // behind the end
  EXPECT_THAT(series.Before(3 * kSecondNs), ElementsAre(3, 4, 8));
}

TEST(BandwidthSeries, GivesWholeIntervalsOnly) {
  BandwidthSeries series(3, 1);
  series.Add(0, 1);
  series.Add(kSecondNs, 2);
  EXPECT_THAT(series.Before(2 * kSecondNs - 1), ElementsAre(1));
  EXPECT_TRUE(series.Before(-1).empty());
}

TEST(LoadClock, LetsAllThreadsGoTogetherAndWaitsForTheLast) {
  LoadClock clock(3, 0.001, 0.002, 0.001);
  std::atomic<int> num_running = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(clock.AwaitStart());
      ++num_running;
      clock.Drained();
      clock.AwaitLeave();
    });
  }
  clock.AwaitReady();
  EXPECT_EQ(num_running, 0);
  clock.Start(true);
  while (!clock.AllDrained(10)) {
  }
  EXPECT_EQ(num_running, 3);
  EXPECT_EQ(clock.measure_ns() - clock.start_ns(), 1'000'000);
  EXPECT_EQ(clock.end_ns() - clock.measure_ns(), 2'000'000);
  clock.Leave();
  for (std::thread& thread : threads) thread.join();
}

TEST(LoadClock, EndingEarlyIsNeverLater) {
  LoadClock clock(1, 0, 0.001, 0.001);
  clock.Start(true);
  const int64_t end_ns = clock.end_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  clock.End();
  EXPECT_EQ(clock.end_ns(), end_ns);
  LoadClock longer(1, 0, 3600, 1);
  longer.Start(true);
  EXPECT_FALSE(longer.ended(NowNs()));
  longer.End();
  EXPECT_TRUE(longer.ended(NowNs()));
}

}  // namespace
}  // namespace forebay
