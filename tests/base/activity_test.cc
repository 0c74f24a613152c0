#include "forebay/base/activity.h"

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace forebay {
namespace {

void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(Activity, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kNumActivities; ++i) names.insert(NameOf(static_cast<Activity>(i)));
  EXPECT_EQ(names.size(), kNumActivities);
}

TEST(Activity, AClockTellsOthersWhatItsThreadDidWhen) {
  ActivityClock clock;
  const ActivityTimes before = clock.Times();
  std::thread worker([&] {
    clock.BelongsToThisThread();
    const ActivityScope update(Activity::kUpdate);
    Sleep(20);
    {
      const ActivityScope state(Activity::kReadState);
      Sleep(40);
    }
    Sleep(10);
  });
  worker.join();
  const ActivityTimes times = clock.Times() - before;
  EXPECT_GE(times[Activity::kUpdate], 0.029);
  EXPECT_GE(times[Activity::kReadState], 0.039);
  EXPECT_GT(times.Total(), times[Activity::kUpdate] + times[Activity::kReadState]);  // kOther
  EXPECT_EQ(times[Activity::kCommit], 0);
}

TEST(Activity, WhatHasNotEndedCounts) {
  ActivityClock clock;
  clock.Enter(Activity::kDevice);
  const ActivityTimes begin = clock.Times();
  Sleep(10);
  const ActivityTimes times = clock.Times() - begin;
  EXPECT_GE(times[Activity::kDevice], 0.009);
  EXPECT_EQ(times.Total(), times[Activity::kDevice]);
}

TEST(Activity, AThreadWithoutAClockTellsNobody) {
  std::thread([] { const ActivityScope scope(Activity::kUpdate); }).join();
}

}  // namespace
}  // namespace forebay
