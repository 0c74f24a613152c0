// Two GPUs, and a caller whose current one is the other. The GPUs are twins on the host
// (cudart_twin.h), so that this runs where there is none.
#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>

#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/tests/device/cudart_twin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int kDevice = 1;

int CurrentDevice() {
  int device = -1;
  cudaGetDevice(&device);
  return device;
}

class CurrentDeviceTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    TheCudartTwin() = {};
    cudaSetDevice(GetParam());
    auto device = CreateCudaDevice(kDevice);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  // That `work` calls the runtime, on our device alone, and leaves the caller's what it was.
  void ExpectOnDevice(const std::function<void()>& work) {
    TheCudartTwin() = {};
    work();
    EXPECT_THAT(TheCudartTwin().calls, testing::Not(testing::IsEmpty()));
    for (const auto& [name, device] : TheCudartTwin().calls) EXPECT_EQ(device, kDevice) << name;
    EXPECT_EQ(TheCudartTwin().num_misplaced, 0);
    EXPECT_EQ(CurrentDevice(), GetParam());
  }

  std::unique_ptr<Device> device_;
};

TEST_P(CurrentDeviceTest, MemoryIsTheDevices) {
  DeviceBuffer buffer;
  ExpectOnDevice([&] { buffer = *device_->Allocate(16); });
  ExpectOnDevice([&] { buffer.Reset(); });
  ExpectOnDevice([&] { EXPECT_EQ(device_->Memory()->free_bytes, 1000 + kDevice); });
  ExpectOnDevice([&] {
    EXPECT_EQ(ExitCodeOf(device_->Allocate(int64_t{1} << 60).status()), ExitCode::kOutOfMemory);
  });
}

TEST_P(CurrentDeviceTest, MemoryIsPinnedForTheDevice) {
  std::array<std::byte, 16> memory;
  PinnedRegion region;
  ExpectOnDevice([&] { region = *device_->Pin(memory); });
  ExpectOnDevice([&] { region.Reset(); });
}

TEST_P(CurrentDeviceTest, EveryCallOfAStreamIsOnItsDevice) {
  std::unique_ptr<Stream> stream;
  ExpectOnDevice([&] { stream = *device_->CreateStream(); });
  std::array<std::byte, 16> memory = {}, other = {};
  ExpectOnDevice([&] { EXPECT_TRUE(stream->CopyToDevice(other.data(), memory).ok()); });
  ExpectOnDevice([&] { EXPECT_TRUE(stream->CopyToHost(memory, other.data()).ok()); });
  ExpectOnDevice([&] { EXPECT_TRUE(stream->Fill(other.data(), std::byte{1}, 16).ok()); });
  ExpectOnDevice([&] { EXPECT_TRUE(stream->Await().ok()); });
  const std::unique_ptr<Event> event = *device_->CreateEvent();
  ExpectOnDevice([&] { EXPECT_TRUE(stream->Record(*event).ok()); });
  ExpectOnDevice([&] { EXPECT_TRUE(stream->WaitFor(*event).ok()); });
  ExpectOnDevice([&] { stream.reset(); });
}

TEST_P(CurrentDeviceTest, EveryCallOfAnEventIsOnItsDevice) {
  std::unique_ptr<Event> event;
  ExpectOnDevice([&] { event = *device_->CreateEvent(); });
  ExpectOnDevice([&] { EXPECT_TRUE(event->Await().ok()); });
  ExpectOnDevice([&] { EXPECT_EQ(*event->IsReached(), true); });
  ExpectOnDevice([&] {
    TheCudartTwin().is_busy = true;
    EXPECT_EQ(*event->IsReached(), false);
  });
  ExpectOnDevice([&] { event.reset(); });
}

TEST_P(CurrentDeviceTest, TheTimeBetweenTwoEventsIsInSeconds) {
  const std::unique_ptr<Stream> stream = *device_->CreateStream();
  std::unique_ptr<Event> first, second;
  ExpectOnDevice([&] { first = *device_->CreateTimedEvent(); });
  ExpectOnDevice([&] { second = *device_->CreateTimedEvent(); });
  ASSERT_TRUE(stream->Record(*first).ok());
  ASSERT_TRUE(stream->Record(*second).ok());
  ExpectOnDevice([&] { EXPECT_EQ(*second->SecondsSince(*first), 1.0); });
}

TEST_P(CurrentDeviceTest, ALaunchIsOnTheStreamsDeviceWhateverComesOfIt) {
  const std::unique_ptr<Stream> stream = *device_->CreateStream();
  const std::unique_ptr<Event> event = *device_->CreateEvent();
  for (const absl::Status& result : {absl::OkStatus(), EnvironmentError("no")}) {
    ExpectOnDevice([&] {
      EXPECT_EQ(stream->Launch([&](void* native_stream) {
        // In place of a kernel: what takes the stream as a kernel does.
        EXPECT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(native_stream)), cudaSuccess);
        return result;
      }),
                result);
    });
  }
}

// Where the caller's current device is the stream's, nothing is selected.
class RefusedDeviceTest : public CurrentDeviceTest {};
INSTANTIATE_TEST_SUITE_P(OfTheCaller, RefusedDeviceTest, testing::Values(0));

TEST_P(RefusedDeviceTest, ADeviceThatCannotBeSelectedIsAnErrorBeforeTheCall) {
  const std::unique_ptr<Stream> stream = *device_->CreateStream();
  TheCudartTwin() = {};
  TheCudartTwin().refuses_to_select = true;
  bool is_called = false;
  const absl::Status status = stream->Launch([&](void*) {
    is_called = true;
    return absl::OkStatus();
  });
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_EQ(ExitCodeOf(stream->Await()), ExitCode::kEnvironment);
  EXPECT_EQ(ExitCodeOf(device_->Allocate(16).status()), ExitCode::kEnvironment);
  EXPECT_FALSE(is_called);
  EXPECT_THAT(TheCudartTwin().calls, testing::IsEmpty());
  TheCudartTwin() = {};
}

INSTANTIATE_TEST_SUITE_P(OfTheCaller, CurrentDeviceTest, testing::Values(0, kDevice));

}  // namespace
}  // namespace forebay
