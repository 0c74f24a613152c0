// A device that reads lent layers, and is not done when they are given back.
#include <span>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/swap/window/swapper_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

// Looks at a lent layer at the moment when the window waits for the work on it.
class LookingEvent : public Event {
 public:
  absl::Status Await() override {
    ++num_awaited;
    seen.assign(looks_at.begin(), looks_at.end());
    return result;
  }
  absl::StatusOr<bool> IsReached() override { return true; }
  absl::StatusOr<double> SecondsSince(Event& /*first*/) override { return 0.0; }
  std::span<const std::byte> looks_at;
  std::vector<std::byte> seen;
  int num_awaited = 0;
  absl::Status result;
};

TEST_F(SwapperTest, ALayerThatADeviceStillReadsKeepsItsBufferUntilTheDeviceIsDone) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  LookingEvent done;
  swapper_->Expect(std::vector<int>{1, 2, 3});
  const auto first = swapper_->Acquire(1);
  ASSERT_TRUE(first.ok());
  done.looks_at = *first;
  swapper_->Release(1, &done);
  ASSERT_TRUE(Use(2, 0).ok());
  // Two buffers: the third layer takes that of the first.
  const auto third = swapper_->Acquire(3);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->data(), first->data());
  EXPECT_EQ(done.num_awaited, 1);
  EXPECT_TRUE(AllAre(done.seen, Expected(1, 0)));
  swapper_->Release(3);
}

TEST_F(SwapperTest, AnUpdateWaitsForTheDeviceThatReadsItsLayer) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper().ok());
  LookingEvent done;
  swapper_->Expect(std::vector<int>{1});
  const auto lent = swapper_->Acquire(1);
  ASSERT_TRUE(lent.ok());
  done.looks_at = *lent;
  swapper_->Release(1, &done);
  updater_->MakeDue(1);
  ASSERT_TRUE(ExpectAndUse({1}, 1).ok());
  EXPECT_EQ(done.num_awaited, 1);
  EXPECT_TRUE(AllAre(done.seen, Expected(1, 0)));
}

TEST_F(SwapperTest, TheFailureOfADeviceThatReadALayerIsTheErrorOfTheNextAcquire) {
  MakeStore();
  ASSERT_TRUE(MakeSwapper(2).ok());
  LookingEvent done;
  done.result = EnvironmentError("the device failed");
  swapper_->Expect(std::vector<int>{1, 2, 3});
  ASSERT_TRUE(swapper_->Acquire(1).ok());
  swapper_->Release(1, &done);
  Use(2, 0).IgnoreError();  // it may be known by then
  const absl::Status status = swapper_->Acquire(3).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("the device failed"));
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("'layers.0'"));
  swapper_.reset();
}

}  // namespace
}  // namespace forebay
