// Runs a test over every device: the host's twin always, a GPU where there is one.
#pragma once

#include <memory>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "gtest/gtest.h"

namespace forebay {

class DeviceTest : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceKind::kHost) {
      device_ = CreateHostDevice();
      return;
    }
    auto cuda = CreateCudaDevice(0);
    if (!cuda.ok()) GTEST_SKIP() << MessageOf(cuda.status());
    device_ = *std::move(cuda);
  }

  std::unique_ptr<Stream> MakeStream() {
    auto stream = device_->CreateStream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }
  std::unique_ptr<Event> MakeEvent() {
    auto event = device_->CreateEvent();
    EXPECT_TRUE(event.ok()) << event.status();
    return *std::move(event);
  }
  DeviceBuffer Allocate(int64_t size_bytes) {
    auto buffer = device_->Allocate(size_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  std::unique_ptr<Device> device_;
};

inline std::string DeviceTestName(const testing::TestParamInfo<DeviceKind>& kind) {
  return kind.param == DeviceKind::kHost ? "Host" : "Cuda";
}

}  // namespace forebay
