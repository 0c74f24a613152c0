#include "forebay/memory/device_allocation.h"

#include <utility>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class DeviceAllocationTest : public testing::Test {
 protected:
  const std::unique_ptr<Device> device_ = CreateHostDevice();
  MemoryBudget budget_{1000, "--gpu_mem"};
};

TEST_F(DeviceAllocationTest, IsChargedWhileItLives) {
  {
    auto made = DeviceAllocation::Create(&budget_, device_.get(), "weights", 600);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_NE(made->address(), nullptr);
    EXPECT_EQ(budget_.by_purpose().at("weights"), 600);
    DeviceAllocation moved = *std::move(made);
    moved = DeviceAllocation(std::move(moved));
    EXPECT_EQ(moved.size_bytes(), 600);
    EXPECT_EQ(budget_.used_bytes(), 600);
    moved = DeviceAllocation();
    EXPECT_EQ(budget_.used_bytes(), 0);
    ASSERT_TRUE(DeviceAllocation::Create(&budget_, device_.get(), "nothing", 0).ok());
  }
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(DeviceAllocationTest, MoreThanTheBudgetNamesItsOption) {
  const auto first = DeviceAllocation::Create(&budget_, device_.get(), "weights", 600);
  const auto second = DeviceAllocation::Create(&budget_, device_.get(), "gradients", 600);
  EXPECT_EQ(ExitCodeOf(second.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(second.status()), HasSubstr("--gpu_mem"));
  EXPECT_EQ(budget_.used_bytes(), 600);
}

TEST_F(DeviceAllocationTest, MoreThanTheDeviceHasNamesThePurposeAndChargesNothing) {
  MemoryBudget endless(0);
  const auto made = DeviceAllocation::Create(&endless, device_.get(), "weights", int64_t{1} << 60);
  EXPECT_EQ(ExitCodeOf(made.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(made.status()), HasSubstr("weights"));
  EXPECT_EQ(endless.used_bytes(), 0);
}

}  // namespace
}  // namespace forebay
