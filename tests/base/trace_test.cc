#include "forebay/base/trace.h"

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/activity.h"
#include "forebay/base/process/parallel.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr size_t kChunkBytes = 64 * sizeof(TraceEvent);

struct Recording {
  explicit Recording(size_t num_chunks)
      : memory(num_chunks * kChunkBytes / sizeof(int64_t)),
        recorder(std::as_writable_bytes(std::span(memory))) {}
  std::vector<int64_t> memory;  // for its alignment
  TraceRecorder recorder;
};

TEST(Trace, ScopesOfEveryThreadAreRecordedWhileItGoesOn) {
  Recording recording(64);
  TraceRecorder& recorder = recording.recorder;
  { const TraceScope before("before"); }
  ASSERT_TRUE(recorder.Start());
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([i] {
      NameThreadInTraces("worker " + std::to_string(i));
      for (int layer = 0; layer < 100; ++layer) {
        const TraceScope scope("outer", {.layer = layer});
        const TraceScope inner(Activity::kWrite);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder.Stop();
  { const TraceScope after("after"); }
  std::vector<int> next_layer(3);
  int num_inner = 0;
  int64_t last_end_ns = 0;
  recorder.ForEach([&](const TraceRecorder::Thread& thread, const TraceEvent& event) {
    EXPECT_GE(event.begin_ns, recorder.begin_ns());
    EXPECT_GE(event.end_ns, event.begin_ns);
    if (event.name == nullptr) {
      EXPECT_EQ(event.activity, Activity::kWrite);
      last_end_ns = event.end_ns;
      ++num_inner;
      return;
    }
    EXPECT_STREQ(event.name, "outer");
    EXPECT_GE(event.end_ns, last_end_ns);
    const int worker = std::string_view(thread.name.data()).back() - '0';
    EXPECT_EQ(event.layer, next_layer[worker]++);
  });
  EXPECT_EQ(next_layer, std::vector<int>(3, 100));
  EXPECT_EQ(num_inner, 300);
  EXPECT_EQ(recorder.num_events(), 600);
  EXPECT_EQ(recorder.num_dropped(), 0);
}

TEST(Trace, ThreadsOfAPoolHaveItsName) {
  Recording recording(16);
  ThreadPool pool(3, "pool");
  ASSERT_TRUE(recording.recorder.Start());
  pool.ParallelFor(30, [](int64_t) {
    const TraceScope scope("task");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  recording.recorder.Stop();
  std::set<std::string> names;
  recording.recorder.ForEach([&](const TraceRecorder::Thread& thread, const TraceEvent&) {
    names.insert(thread.name.data());
  });
  EXPECT_EQ(names.count("pool-1"), 1u);
  EXPECT_EQ(recording.recorder.num_events(), 30);
}

TEST(Trace, WhatDoesNotFitIsCounted) {
  Recording recording(2);
  ASSERT_TRUE(recording.recorder.Start());
  for (int i = 0; i < 200; ++i) const TraceScope scope("scope");
  recording.recorder.Stop();
  EXPECT_EQ(recording.recorder.num_events(), 128);
  EXPECT_EQ(recording.recorder.num_dropped(), 72);
}

TEST(Trace, OneRecordingGoesOnAtATimeAndTheNextBeginsEmpty) {
  Recording first(1), second(1);
  ASSERT_TRUE(first.recorder.Start());
  EXPECT_FALSE(second.recorder.Start());
  { const TraceScope scope("of the first"); }
  first.recorder.Stop();
  Recording third(1);
  ASSERT_TRUE(third.recorder.Start());
  { const TraceScope scope("of the third"); }
  third.recorder.Stop();
  EXPECT_EQ(first.recorder.num_events(), 1);
  EXPECT_EQ(second.recorder.num_events(), 0);
  third.recorder.ForEach([](const TraceRecorder::Thread&, const TraceEvent& event) {
    EXPECT_STREQ(event.name, "of the third");
  });
  EXPECT_EQ(third.recorder.num_events(), 1);
}

TEST(Trace, AScopeThatIsLongerThanARecordingShowsInItByItsPieces) {
  Recording recording(1);
  TraceScope scope("long");
  scope.Next();
  ASSERT_TRUE(recording.recorder.Start());
  scope.Next();  // begins here
  scope.Next();
  scope.Next();
  recording.recorder.Stop();
  scope.Next();
  EXPECT_EQ(recording.recorder.num_events(), 3);
}

TEST(Trace, TextsHaveNumbersAsFarAsThereIsRoom) {
  Recording recording(1);
  const int a = recording.recorder.LabelOf("a");
  const int b = recording.recorder.LabelOf("b");
  EXPECT_NE(a, b);
  EXPECT_EQ(recording.recorder.LabelOf("a"), a);
  EXPECT_EQ(recording.recorder.label(b), "b");
  int last = 0;
  for (int i = 0; i < 2000; ++i) last = recording.recorder.LabelOf(std::to_string(i));
  EXPECT_EQ(last, -1);
  EXPECT_EQ(recording.recorder.LabelOf("b"), b);
}

}  // namespace
}  // namespace forebay
