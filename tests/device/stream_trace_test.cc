// Rows of streams: on the host's twin, whose clock is the trace's, and on a GPU where there is one.
#include "forebay/device/stream_trace.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "forebay/tests/device/device_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr int64_t kWorkBytes = 1 << 20;

class StreamTraceTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    memory_ = Allocate(2 * kWorkBytes);
  }
  void Make(int64_t num_slices = 16) {
    auto trace = StreamTrace::Create(device_.get(), "GPU", num_slices);
    ASSERT_TRUE(trace.ok()) << trace.status();
    trace_ = *std::move(trace);
    stream_ = *CreateTracedStream(device_.get(), "compute");
    ASSERT_TRUE(recorder_.Start());
  }
  // Each on memory of its own, where two work side by side.
  void Work(const std::unique_ptr<Stream>& stream) {
    std::byte* const to = memory_.As<std::byte>() + (stream == stream_ ? 0 : kWorkBytes);
    EXPECT_TRUE(stream->Fill(to, std::byte{1}, kWorkBytes).ok());
  }
  void WorkInScope(const std::unique_ptr<Stream>& stream, const char* name, int layer = 0) {
    const StreamScope scope(*stream, name, {.layer = layer, .tile = 7, .batch = 8}, kWorkBytes);
    Work(stream);
  }
  std::map<std::string, std::vector<TraceEvent>> Stopped() {
    trace_->Stop();
    recorder_.Stop();
    std::map<std::string, std::vector<TraceEvent>> rows;
    recorder_.ForEach([&](const TraceRecorder::Thread&, const TraceEvent& event) {
      EXPECT_EQ(event.row, TraceRow::kDevice);
      EXPECT_LE(event.begin_ns, event.end_ns);
      rows[recorder_.label(event.label)].push_back(event);
    });
    return rows;
  }
  static std::vector<int> LayersOf(const std::vector<TraceEvent>& events) {
    std::vector<int> layers;
    for (const TraceEvent& event : events) layers.push_back(event.layer);
    return layers;
  }

  std::vector<std::byte> room_ = std::vector<std::byte>(1 << 16);
  TraceRecorder recorder_{room_};
  DeviceBuffer memory_;
  std::unique_ptr<StreamTrace> trace_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(StreamTraceTest, SlicesAreWhenTheStreamsDidTheirWork) {
  Make();
  const auto copies = *CreateTracedStream(device_.get(), "copies");
  const auto copied = MakeEvent();
  trace_->Start(&recorder_);
  const int64_t start_ns = TraceNowNs();
  for (int layer = 0; layer < 3; ++layer) {
    WorkInScope(copies, "copy", layer);
    ASSERT_TRUE(copies->Record(*copied).ok());
    ASSERT_TRUE(stream_->WaitFor(*copied).ok());
    WorkInScope(stream_, "forward", layer);
  }
  ASSERT_TRUE(stream_->Await().ok());
  const int64_t end_ns = TraceNowNs();
  const auto rows = Stopped();
  ASSERT_EQ(rows.size(), 2u);
  const std::vector<TraceEvent>& copy = rows.at("GPU: copies");
  const std::vector<TraceEvent>& forward = rows.at("GPU: compute");
  EXPECT_THAT(LayersOf(copy), ElementsAre(0, 1, 2));
  EXPECT_THAT(LayersOf(forward), ElementsAre(0, 1, 2));
  constexpr int64_t kClockNs = 2000;  // to which a GPU knows the time
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_STREQ(copy[i].name, "copy");
    EXPECT_EQ(copy[i].tile, 7);
    EXPECT_EQ(copy[i].batch, 8);
    EXPECT_EQ(copy[i].bytes, kWorkBytes);
    EXPECT_GT(copy[i].end_ns, copy[i].begin_ns);
    EXPECT_LE(copy[i].end_ns, forward[i].begin_ns + kClockNs);
    if (i > 0) {
      EXPECT_LE(forward[i - 1].end_ns, forward[i].begin_ns);
    }
  }
  // The clocks are beside each other to the time that one wait takes.
  constexpr int64_t kAnchorNs = 1000000;
  EXPECT_GE(copy.front().begin_ns, start_ns - kAnchorNs);
  EXPECT_LE(forward.back().end_ns, end_ns + kAnchorNs);
}

TEST_P(StreamTraceTest, NothingIsRecordedBeforeItStartsAndAfterItStops) {
  const auto before = *CreateTracedStream(device_.get(), "none");
  EXPECT_EQ(before->row(), nullptr);
  Make();
  WorkInScope(stream_, "early");
  trace_->Start(&recorder_);
  WorkInScope(before, "without a row");
  WorkInScope(stream_, "traced");
  {
    const StreamScope scope(*stream_, "cut off");
    trace_->Stop();
  }
  WorkInScope(stream_, "late");
  const auto rows = Stopped();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows.begin()->second.size(), 1u);
  EXPECT_STREQ(rows.begin()->second.front().name, "traced");
  EXPECT_EQ(recorder_.num_dropped(), 0);
  trace_ = nullptr;
  EXPECT_EQ((*CreateTracedStream(device_.get(), "none"))->row(), nullptr);
}

TEST_P(StreamTraceTest, PlacesOfSlicesThatAreDoneAreUsedAgain) {
  constexpr int kNumPlaces = 2, kNumSlices = 9;
  Make(kNumPlaces);
  trace_->Start(&recorder_);
  std::vector<int> layers;
  for (int layer = 0; layer < kNumSlices; ++layer) {
    WorkInScope(stream_, "forward", layer);
    ASSERT_TRUE(stream_->Await().ok());
    layers.push_back(layer);
  }
  EXPECT_EQ(LayersOf(Stopped()["GPU: compute"]), layers);
  EXPECT_EQ(recorder_.num_dropped(), 0);
}

TEST_P(StreamTraceTest, WhatThereIsNoRoomForIsCounted) {
  Make(/*num_slices=*/2);
  trace_->Start(&recorder_);
  {
    const StreamScope first(*stream_, "first"), second(*stream_, "second");
    const StreamScope third(*stream_, "third"), fourth(*stream_, "fourth");
    Work(stream_);
  }
  EXPECT_EQ(Stopped()["GPU: compute"].size(), 2u);
  EXPECT_EQ(recorder_.num_dropped(), 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamTraceTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
