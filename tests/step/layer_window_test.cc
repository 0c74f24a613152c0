// The window without a store: what it asks of a filler, and when. The tests of the swapper and of
// checkpoints have the rest.
#include "forebay/step/layer_window.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kNumLayers = 6;

// Writes down what it is asked for.
class NotingFiller : public LayerFiller {
 public:
  void StartRead(int buffer, int layer, bool urgent) override {
    Note(fmt::format("start {} in {}{}", layer, buffer, urgent ? ", urgent" : ""));
  }
  absl::StatusOr<bool> AwaitPart(int /*buffer*/, int layer) override {
    if (layer != parted_layer || num_parts == 0) return false;
    if (--num_parts > 0) return true;
    if (layer == broken_layer) return StorageError("no such part");
    return false;
  }
  absl::Status FinishRead(int /*buffer*/, int layer, bool is_used) override {
    const ActivityScope scope(Activity::kReadWeights);
    if (is_used && layer == slow_layer) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    Note(fmt::format("{} {}", is_used ? "finish" : "end", layer));
    return is_used && layer == broken_layer ? StorageError("no such layer") : absl::OkStatus();
  }
  bool UpdateIsDue(int layer) const override { return layer == due_layer; }
  absl::Status Update(int /*buffer*/, int layer) override {
    Note(fmt::format("update {}", layer));
    due_layer = -1;
    return absl::OkStatus();
  }

  bool ReadFurther() override {
    ++num_reads_further;
    return num_further.fetch_sub(1) > 1;
  }

  std::vector<std::string> notes() {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

  int broken_layer = -1;
  int due_layer = -1;
  int slow_layer = -1;
  int parted_layer = -1;
  std::atomic<int64_t> num_parts = 0;          // of that layer
  std::atomic<int64_t> num_further = 0;        // that ReadFurther has left
  std::atomic<int64_t> num_reads_further = 0;  // its calls

 private:
  void Note(std::string note) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(note));
  }

  std::mutex mutex_;
  std::vector<std::string> notes_;
};

class LayerWindowTest : public testing::Test {
 protected:
  LayerWindowTest() {
    for (int layer = 0; layer < kNumLayers; ++layer) {
      inventory_.BeginLayer(fmt::format("layer{}", layer));
      inventory_.Add(fmt::format("tensor{}", layer), {1}, 0, true);
    }
  }
  void Create(int num_buffers) {
    auto window = LayerWindow::Create(
        WindowBuffers(std::vector(kNumLayers, BufferClass::kBlock), {num_buffers, 0}), inventory_,
        &filler_);
    ASSERT_TRUE(window.ok()) << window.status();
    window_ = *std::move(window);
  }
  void Expect(const std::vector<int>& layers) { window_->Expect(layers); }
  absl::Status Use(const std::vector<int>& layers) {
    for (const int layer : layers) {
      FOREBAY_RETURN_IF_ERROR(window_->Acquire(layer).status());
      window_->Release(layer);
    }
    return absl::OkStatus();
  }

  Inventory inventory_;
  NotingFiller filler_;
  std::unique_ptr<LayerWindow> window_;
};

TEST_F(LayerWindowTest, StartsTheReadsOfAllFreeBuffersBeforeItWaitsForOne) {
  Create(3);
  Expect({0, 1, 2, 3});
  for (const int layer : {0, 1, 2}) ASSERT_TRUE(window_->Acquire(layer).ok());
  EXPECT_THAT(filler_.notes(), ElementsAre("start 0 in 0, urgent", "start 1 in 1", "start 2 in 2",
                                           "finish 0", "finish 1", "finish 2"));
  window_->Release(1);
  const absl::StatusOr<int> buffer = window_->Acquire(3);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(*buffer, 1);
  EXPECT_THAT(filler_.notes().back(), "finish 3");
  for (const int layer : {0, 2, 3}) window_->Release(layer);
}

TEST_F(LayerWindowTest, StartsToReadIntoABufferThatBecomesFreeWhileItWaits) {
  Create(2);
  filler_.parted_layer = 1;
  filler_.num_parts = std::numeric_limits<int64_t>::max();
  Expect({0, 1, 2});
  ASSERT_EQ(Use({0}), absl::OkStatus());
  while (filler_.notes().size() < 5) std::this_thread::yield();
  filler_.num_parts = 1;
  ASSERT_EQ(Use({1, 2}), absl::OkStatus());
  EXPECT_THAT(filler_.notes(), ElementsAre("start 0 in 0, urgent", "start 1 in 1", "finish 0",
                                           "end 0", "start 2 in 0", "finish 1", "finish 2"));
}

TEST_F(LayerWindowTest, AnErrorOfAPartStaysToo) {
  Create(2);
  filler_.parted_layer = filler_.broken_layer = 1;
  filler_.num_parts = 3;
  Expect({0, 1, 2});
  const absl::Status status = Use({0, 1});
  EXPECT_THAT(MessageOf(status), HasSubstr("no such part"));
  EXPECT_EQ(window_->Acquire(2).status(), status);
}

TEST_F(LayerWindowTest, ADueUpdateComesBetweenTheReadAndTheLease) {
  Create(2);
  filler_.due_layer = 1;
  Expect({0, 1});
  ASSERT_EQ(Use({0, 1}), absl::OkStatus());
  EXPECT_THAT(filler_.notes(), ElementsAre("start 0 in 0, urgent", "start 1 in 1", "finish 0",
                                           "finish 1", "update 1"));
}

TEST_F(LayerWindowTest, CountsWaitsByWhatTheyWereFor) {
  Create(2);
  filler_.slow_layer = 1;
  ActivityTimes waits;
  // On a busy machine this thread may come after most of the read.
  for (int tries = 0; tries < 100 && waits[Activity::kReadWeights] < 0.03; ++tries) {
    const ActivityTimes before = window_->stats().waits;
    Expect({0, 1});
    ASSERT_EQ(Use({0, 1}), absl::OkStatus());
    waits = window_->stats().waits - before;
  }
  EXPECT_GE(waits[Activity::kReadWeights], 0.03);
  EXPECT_EQ(waits[Activity::kUpdate], 0);
  Expect({2, 3});
  while (filler_.notes().back() != "finish 3")
    std::this_thread::yield();  // after layer 2 was ready
  waits = window_->stats().waits;
  ASSERT_EQ(Use({2}), absl::OkStatus());
  EXPECT_EQ(window_->stats().waits.Total(), waits.Total());
}

TEST_F(LayerWindowTest, ItsFillerReadsFurtherAsLongAsThereIsMoreAndNothingElseToDo) {
  filler_.num_further = 3;
  Create(2);
  while (filler_.num_further > 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(filler_.num_reads_further, 3);
  // With ever more to read it still does what it is asked for.
  filler_.num_further = std::numeric_limits<int64_t>::max();
  Expect({0});
  ASSERT_EQ(Use({0}), absl::OkStatus());
  while (filler_.num_reads_further < 10) std::this_thread::yield();
  filler_.broken_layer = 1;
  Expect({1});
  EXPECT_THAT(MessageOf(Use({1})), HasSubstr("no such layer"));
  const int64_t calls = filler_.num_reads_further;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(filler_.num_reads_further, calls) << "after an error nothing is read";
}

TEST_F(LayerWindowTest, WhatWasCancelledIsNotUsedBeforeItsBufferIs) {
  Create(2);
  Expect({0, 1});
  ASSERT_EQ(Use({0}), absl::OkStatus());
  window_->CancelExpected();
  const size_t num_notes = filler_.notes().size();
  Expect({2, 3});
  ASSERT_EQ(Use({2, 3}), absl::OkStatus());
  std::vector<std::string> behind = filler_.notes();
  behind.erase(behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(num_notes));
  // The buffer of layer 1 was never used.
  EXPECT_THAT(behind, ElementsAre("end 1", "start 2 in 1, urgent", "end 0", "start 3 in 0",
                                  "finish 2", "finish 3"));
}

TEST_F(LayerWindowTest, ForgetsTheLayersThatAreNamed) {
  Create(2);
  Expect({0, 1});
  ASSERT_EQ(Use({0, 1}), absl::OkStatus());
  window_->Forget([](int layer) { return layer == 1; });
  Expect({0, 1});
  ASSERT_EQ(Use({0, 1}), absl::OkStatus());
  EXPECT_EQ(window_->stats().weight_reads, 3);
  EXPECT_EQ(window_->stats().weight_hits, 1);
}

TEST_F(LayerWindowTest, StagesLayersThatNobodyAnnouncedOnItsThread) {
  Create(2);
  filler_.due_layer = 4;
  Expect({0, 1});
  ASSERT_EQ(Use({0}), absl::OkStatus());
  std::thread::id thread;
  const std::vector<int> layers = {4, 5};
  const absl::Status status = window_->Between([&] {
    thread = std::this_thread::get_id();
    return window_->StageAll(layers);
  });
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_THAT(filler_.notes(), testing::Contains("update 4"));
  EXPECT_THAT(filler_.notes(), testing::Contains("finish 5"));
  EXPECT_EQ(Use({1}), absl::OkStatus()) << "what was announced is staged again";
}

TEST_F(LayerWindowTest, TheFirstErrorStays) {
  Create(2);
  filler_.broken_layer = 1;
  Expect({0, 1, 2});
  const absl::Status status = Use({0, 1});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_EQ(window_->Acquire(2).status(), status);
  EXPECT_EQ(window_->Between([] { return UsageError("another"); }), status);
}

TEST_F(LayerWindowTest, TheErrorOfWorkBetweenAccessesStaysToo) {
  Create(2);
  const absl::Status status = window_->Between([] { return StorageError("no room"); });
  EXPECT_THAT(MessageOf(status), HasSubstr("no room"));
  Expect({0});
  EXPECT_EQ(window_->Acquire(0).status(), status);
}

}  // namespace
}  // namespace forebay
