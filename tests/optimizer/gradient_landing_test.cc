#include "forebay/optimizer/gradient_landing.h"

#include <memory>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/tests/optimizer/far_device.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

class GradientLandingTest : public testing::Test {
 protected:
  std::unique_ptr<OffloadedRun> Start(const std::string& name, Device* device) {
    OffloadedRun::Options options;
    options.gradients = Tiers::kMixed;
    options.gradient_device = device;
    auto run = OffloadedRun::Start(options, folder_.Path(name));
    FOREBAY_CHECK(run.ok());
    return *std::move(run);
  }

  // Hands over as a device would: the gradients are on their way when Hand is called, through
  // memory and an event that are used again for every layer.
  absl::StatusOr<GradientStats> BackwardOnDevice(OffloadedRun& run, int64_t step) {
    const Inventory& inventory = run.store().inventory();
    std::vector<std::vector<float>> sent;  // until the stream has read them, whenever that is
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Event> ready, device_.CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(const DeviceBuffer memory,
                             device_.Allocate(inventory.largest_layer_elems() * 4));
    FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device_.CreateStream());
    for (int layer = run.num_layers() - 1; layer >= 0; --layer) {
      const std::vector<float>& gradient = sent.emplace_back(GradientOf(inventory, layer, step));
      FOREBAY_RETURN_IF_ERROR(
          stream->CopyToDevice(memory.address(), std::as_bytes(std::span(gradient))));
      FOREBAY_RETURN_IF_ERROR(stream->Record(*ready));
      FOREBAY_RETURN_IF_ERROR(run.optimizer().Hand(layer,
                                                   {.elems = {memory.As<float>(), gradient.size()},
                                                    .device = DeviceKind::kCuda,
                                                    .ready = ready.get()},
                                                   run.pool()));
    }
    return run.optimizer().FinishBackward();
  }

  TemporaryFolder folder_;
  FarDevice device_;
};

TEST_F(GradientLandingTest, GradientsOfADeviceAreThoseOfTheHost) {
  const auto host = Start("host", nullptr);
  const auto device = Start("device", &device_);
  for (const int64_t step : {1, 2}) {
    const auto expected = host->Backward(step);
    const auto stats = BackwardOnDevice(*device, step);
    ASSERT_TRUE(expected.ok() && stats.ok()) << stats.status();
    EXPECT_EQ(stats->norm, expected->norm);
    EXPECT_EQ(stats->first_nonfinite_layer, -1);
    host->optimizer().AbandonStep();
    device->optimizer().AbandonStep();
  }
}

TEST_F(GradientLandingTest, AGradientInRamMayHaveAnEventToo) {
  const auto run = Start("host", nullptr);
  const Inventory& inventory = run->store().inventory();
  const auto expected = run->Backward(1);
  ASSERT_TRUE(expected.ok());
  run->optimizer().AbandonStep();
  const auto stream = *device_.CreateStream();
  const auto ready = *device_.CreateEvent();
  const auto memory = device_.Allocate(inventory.largest_layer_elems() * 4);
  ASSERT_TRUE(memory.ok());
  for (int layer = run->num_layers() - 1; layer >= 0; --layer) {
    const std::vector<float> gradient = GradientOf(inventory, layer, 1);
    std::vector<float> copied(gradient.size());
    ASSERT_TRUE(stream->CopyToDevice(memory->address(), std::as_bytes(std::span(gradient))).ok());
    ASSERT_TRUE(
        stream->CopyToHost(std::as_writable_bytes(std::span(copied)), memory->address()).ok());
    ASSERT_TRUE(stream->Record(*ready).ok());
    const LayerGradient handed = {.elems = copied, .ready = ready.get()};
    ASSERT_TRUE(run->optimizer().Hand(layer, handed, run->pool()).ok());
  }
  const auto stats = run->optimizer().FinishBackward();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->norm, expected->norm);
}

TEST_F(GradientLandingTest, AFailureOfTheDeviceIsTheErrorOfTheHand) {
  const auto run = Start("device", &device_);
  device_.fails = true;
  EXPECT_EQ(BackwardOnDevice(*run, 1).status(), EnvironmentError("the device failed"));
  device_.fails = false;
  run->optimizer().AbandonStep();
  EXPECT_TRUE(BackwardOnDevice(*run, 1).ok());
}

}  // namespace
}  // namespace forebay
