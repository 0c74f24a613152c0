// One rank: what every caller may rely on where there is nobody else.
#include <array>
#include <memory>
#include <vector>

#include "forebay/collective/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;

TEST(LoneCommunicator, EveryCallLeavesTheValuesAsTheyAre) {
  const auto alone = Communicator::CreateAlone();
  EXPECT_EQ(alone->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  EXPECT_FALSE(alone->host(0).empty());
  std::vector<float> values = {1, 2, 3};
  const std::array<int64_t, 2> offsets = {0, 3};
  EXPECT_TRUE(alone->AllReduce(values).ok());
  EXPECT_TRUE(alone->ReduceScatter(values, offsets).ok());
  EXPECT_TRUE(alone->Broadcast(std::as_writable_bytes(std::span(values)), 0).ok());
  EXPECT_TRUE(alone->Barrier().ok());
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  EXPECT_THAT(alone->GatherRecords("mine").value(), ElementsAre("mine"));
  EXPECT_EQ(alone->traffic().sent_bytes, 0);
  EXPECT_EQ(alone->traffic().num_calls, 3);
}

TEST(LoneCommunicator, DeviceMemoryIsCompleteWhenItIsReady) {
  const std::unique_ptr<Device> device = CreateHostDevice();
  const std::unique_ptr<Event> ready = device->CreateEvent().value();
  const auto alone = Communicator::CreateAlone();
  float value = 7;
  CollectiveTicket last;
  for (int64_t i = 0; i < 2 * kMaxPendingCollectives; ++i) {
    last = alone->StartAllReduce(OnDevice(&value, sizeof value, ready.get()));
  }
  EXPECT_TRUE(alone->IsComplete(last).value());
  EXPECT_TRUE(alone->Await(last).ok());
}

TEST(EvenParts, TheFirstPartsHaveTheRemainder) {
  EXPECT_THAT(EvenParts(11, 4), ElementsAre(0, 3, 6, 9, 11));
  EXPECT_THAT(EvenParts(2, 3), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(EvenParts(0, 2), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace forebay
