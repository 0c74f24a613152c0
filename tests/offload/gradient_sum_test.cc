// The gradients of a GPU, on their way to the sum over ranks.
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/collective/communicator.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/offload/ranks/gradient_sum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::Each;

constexpr int64_t kNumElems = 4096;

Inventory OneLayer() {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("weight", {kNumElems}, 0, true);
  return inventory;
}

// A GPU, one that is emulated, or the host's twin. The emulated one may do its work as late as may
// be, so that what nothing orders comes in the wrong order.
class GradientSumTest : public testing::Test {
 protected:
  GradientSumTest() {
    auto sum = GradientSum::Create(&inventory_, /*parts=*/nullptr, alone_.get(), &budget_,
                                   {.device = device_.get()});
    EXPECT_TRUE(sum.ok()) << sum.status();
    sum_ = *std::move(sum);
    memory_ = *device_->Allocate(inventory_.layers().front().num_elems * int64_t{sizeof(float)});
    compute_ = *device_->CreateStream();
    ready_ = *device_->CreateEvent();
    taken_ = *device_->CreateEvent();
  }
  // All its values, in the order of the stream that computes.
  void Fill(std::byte value) {
    ASSERT_TRUE(compute_->Fill(memory_.address(), value, memory_.size_bytes()).ok());
  }
  LayerGradient Gradient() {
    return {.elems = {memory_.As<float>(), static_cast<size_t>(inventory_.layers()[0].num_elems)},
            .device = device_->kind(),
            .ready = ready_.get(),
            .taken = taken_.get()};
  }

  const Inventory inventory_ = OneLayer();
  const std::unique_ptr<Device> device_ = ChooseDevice().device;
  const std::unique_ptr<Communicator> alone_ = Communicator::CreateAlone();
  MemoryBudget budget_{int64_t{1} << 20};
  std::unique_ptr<GradientSum> sum_;
  DeviceBuffer memory_;
  std::unique_ptr<Event> ready_, taken_;
  std::unique_ptr<Stream> compute_;
};

TEST_F(GradientSumTest, ComeAsTheyWereWhenTheyWereComplete) {
  for (const auto value : {std::byte{0x3f}, std::byte{0x41}}) {
    Fill(value);
    ASSERT_TRUE(compute_->Record(*ready_).ok());
    ASSERT_TRUE(sum_->Start(0, Gradient()).ok());
    // The next layer's, which are made in the same place once these are taken.
    ASSERT_TRUE(compute_->WaitFor(*taken_).ok());
    Fill(std::byte{0});
    ASSERT_TRUE(compute_->Await().ok());
    const auto sum = sum_->Await();
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(sum->layer, 0);
    EXPECT_EQ(std::ssize(sum->elems), inventory_.layers()[0].num_elems);
    EXPECT_THAT(std::as_bytes(sum->elems), Each(value));
  }
}

}  // namespace
}  // namespace forebay
