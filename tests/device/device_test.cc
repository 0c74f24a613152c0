#include "forebay/device/device.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "forebay/tests/device/device_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kSizeBytes = 3 << 20;

std::vector<std::byte> Pattern(int seed) {
  std::vector<std::byte> bytes(kSizeBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + i / 4096 + static_cast<size_t>(seed)) & 0xff);
  }
  return bytes;
}

TEST_P(DeviceTest, BytesComeBackAsTheyWereCopied) {
  const auto stream = MakeStream();
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  const std::vector<std::byte> sent = Pattern(1);
  std::vector<std::byte> received(kSizeBytes);
  ASSERT_TRUE(stream->CopyToDevice(buffer.address(), sent).ok());
  ASSERT_TRUE(stream->CopyToHost(received, buffer.address()).ok());
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceTest, BytesComeBackThroughPinnedMemory) {
  const auto stream = MakeStream();
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  std::vector<std::byte> sent = Pattern(2);
  std::vector<std::byte> received(kSizeBytes);
  const auto pinned_sent = device_->Pin(sent);
  const auto pinned_received = device_->Pin(received);
  ASSERT_TRUE(pinned_sent.ok() && pinned_received.ok());
  ASSERT_TRUE(stream->CopyToDevice(buffer.address(), pinned_sent->memory()).ok());
  ASSERT_TRUE(stream->CopyToHost(pinned_received->memory(), buffer.address()).ok());
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceTest, MemoryMayBePinnedAgainOnceReleased) {
  std::vector<std::byte> memory(kSizeBytes);
  for (int turn = 0; turn < 2; ++turn) {
    const auto pinned = device_->Pin(memory);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
  }
}

TEST_P(DeviceTest, FillSetsExactlyTheGivenBytes) {
  const auto stream = MakeStream();
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  std::vector<std::byte> expected = Pattern(3);
  ASSERT_TRUE(stream->CopyToDevice(buffer.address(), expected).ok());
  ASSERT_TRUE(stream->Fill(buffer.As<std::byte>() + 5, std::byte{0xab}, 100).ok());
  std::fill_n(expected.begin() + 5, 100, std::byte{0xab});
  std::vector<std::byte> received(kSizeBytes);
  ASSERT_TRUE(stream->CopyToHost(received, buffer.address()).ok());
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(received, expected);
}

TEST_P(DeviceTest, CopiesOnTheDeviceFollowTheWorkBeforeThem) {
  const auto stream = MakeStream();
  const DeviceBuffer from = Allocate(kSizeBytes), to = Allocate(kSizeBytes);
  const std::vector<std::byte> sent = Pattern(4);
  std::vector<std::byte> received(kSizeBytes), expected(kSizeBytes, std::byte{7});
  ASSERT_TRUE(stream->CopyToDevice(from.address(), sent).ok());
  ASSERT_TRUE(stream->Fill(to.address(), std::byte{7}, kSizeBytes).ok());
  ASSERT_TRUE(stream->CopyOnDevice(to.As<std::byte>() + 8, from.As<std::byte>() + 4, 100).ok());
  std::copy_n(sent.begin() + 4, 100, expected.begin() + 8);
  ASSERT_TRUE(stream->CopyToHost(received, to.address()).ok());
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(received, expected);
}

TEST_P(DeviceTest, AStreamSeesTheWorkBeforeTheEventThatItWaitsFor) {
  const auto writer = MakeStream();
  const auto reader = MakeStream();
  const auto written = MakeEvent();
  const auto read = MakeEvent();
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  std::vector<std::byte> sent(kSizeBytes);
  std::vector<std::byte> received(kSizeBytes);
  // Pinned, so that nothing waits but for the events.
  const auto pinned_sent = device_->Pin(sent);
  const auto pinned_received = device_->Pin(received);
  ASSERT_TRUE(pinned_sent.ok() && pinned_received.ok());
  for (int turn = 0; turn < 20; ++turn) {
    const std::vector<std::byte> pattern = Pattern(turn);
    std::copy(pattern.begin(), pattern.end(), sent.begin());
    ASSERT_TRUE(writer->CopyToDevice(buffer.address(), sent).ok());
    ASSERT_TRUE(writer->Record(*written).ok());
    ASSERT_TRUE(reader->WaitFor(*written).ok());
    ASSERT_TRUE(reader->CopyToHost(received, buffer.address()).ok());
    ASSERT_TRUE(reader->Record(*read).ok());
    ASSERT_TRUE(read->Await().ok());
    ASSERT_EQ(received, pattern);
  }
}

TEST_P(DeviceTest, AnEventThatWasNeverRecordedIsReached) {
  EXPECT_TRUE(MakeEvent()->Await().ok());
}

TEST_P(DeviceTest, AnEventIsReachedOnceItsWorkIsDone) {
  const auto stream = MakeStream();
  const auto event = MakeEvent();
  EXPECT_EQ(*event->IsReached(), true);
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  ASSERT_TRUE(stream->Fill(buffer.address(), std::byte{1}, kSizeBytes).ok());
  ASSERT_TRUE(stream->Record(*event).ok());
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(*event->IsReached(), true);
}

TEST_P(DeviceTest, TimedEventsSayHowLongTheWorkBetweenThemTook) {
  const auto stream = MakeStream();
  const DeviceBuffer buffer = Allocate(kSizeBytes);
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 3; ++i) {
    auto event = device_->CreateTimedEvent();
    ASSERT_TRUE(event.ok()) << event.status();
    ASSERT_TRUE(stream->Fill(buffer.address(), std::byte{1}, kSizeBytes).ok());
    ASSERT_TRUE(stream->Record(**event).ok());
    events.push_back(*std::move(event));
  }
  const double first = *events[1]->SecondsSince(*events[0]);
  const double second = *events[2]->SecondsSince(*events[1]);
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  // A GPU counts in half microseconds.
  EXPECT_NEAR(*events[2]->SecondsSince(*events[0]), first + second, 5e-6);
  EXPECT_NEAR(*events[0]->SecondsSince(*events[1]), -first, 5e-6);
}

TEST_P(DeviceTest, MemoryIsWhatThereIsAndWhatIsFreeOfIt) {
  const auto memory = device_->Memory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->free_bytes, 0);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
}

TEST_P(DeviceTest, ALaunchGetsTheStreamAndItsErrorComesBack) {
  const auto stream = MakeStream();
  void* native_stream = &native_stream;
  EXPECT_TRUE(stream
                  ->Launch([&](void* native) {
                    native_stream = native;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(native_stream == nullptr, device_->kind() == DeviceKind::kHost);
  EXPECT_EQ(ExitCodeOf(stream->Launch([](void*) { return EnvironmentError("no"); })),
            ExitCode::kEnvironment);
}

TEST_P(DeviceTest, AMovedBufferIsFreedOnce) {
  DeviceBuffer first = Allocate(kSizeBytes);
  void* const address = first.address();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(first.address(), nullptr);
  EXPECT_EQ(second.address(), address);
  EXPECT_EQ(second.size_bytes(), kSizeBytes);
  second = Allocate(16);
  EXPECT_EQ(second.size_bytes(), 16);
}

TEST_P(DeviceTest, AnImpossibleAllocationIsAnErrorThatNamesItsSize) {
  const auto buffer = device_->Allocate(int64_t{1} << 50);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(ExitCodeOf(buffer.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(buffer.status()), testing::HasSubstr("PB"));
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, testing::Values(DeviceKind::kHost, DeviceKind::kCuda),
                         DeviceTestName);

TEST(ChooseDevice, GivesADeviceAndSaysWhyItIsTheHost) {
  const DeviceChoice choice = ChooseDevice();
  ASSERT_NE(choice.device, nullptr);
  EXPECT_EQ(choice.why_host.empty(), choice.device->kind() == DeviceKind::kCuda);
  EXPECT_FALSE(choice.device->name().empty());
}

TEST(CreateCudaDevice, ADeviceThatIsNotThereIsAnErrorOfTheEnvironment) {
  EXPECT_EQ(ExitCodeOf(CreateCudaDevice(99).status()), ExitCode::kEnvironment);
}

}  // namespace
}  // namespace forebay
