#include "forebay/train/speeds/measure_gpu.h"

#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

bool NeverStops() {
  return false;
}

class MeasureGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    options_.device = ComputeDevice::kCuda;
    options_.batch = 2;
    options_.seq = 32;
  }
  TrainOptions options_;
};

TEST_F(MeasureGpu, FindsWhatABlockReaches) {
  DecoderConfig model = TinyDecoder();
  model.vocab_size = 5000;
  model.window = {0, 16, 0};
  for (const auto precision :
       {cpu::Precision::kBf16, cpu::Precision::kFp16, cpu::Precision::kFp32}) {
    options_.precision = precision;
    model.tied_embeddings = !model.tied_embeddings;
    const auto speed = MeasureGpuBlock(model, options_, NeverStops);
    ASSERT_TRUE(speed.ok()) << speed.status();
    // No card is faster, nor the emulation slower, than these.
    EXPECT_GT(*speed, 1e4);
    EXPECT_LT(*speed, 1e17);
  }
}

TEST_F(MeasureGpu, FindsWhatTheBusReaches) {
  const auto speed = MeasureBus(options_, NeverStops);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(*speed, 1e7);
  EXPECT_LT(*speed, 1e13);
}

TEST_F(MeasureGpu, StopsWhenItIsAsked) {
  for (const absl::Status& status :
       {MeasureGpuBlock(TinyDecoder(), options_, [] { return true; }).status(),
        MeasureBus(options_, [] { return true; }).status()}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted);
  }
}

TEST(MeasureGpuThatIsNotThere, IsAnErrorOfTheEnvironment) {
  TrainOptions options;
  options.batch = 2;
  options.seq = 32;
  options.gpu_index = 1000;
  for (const absl::Status& status : {MeasureGpuBlock(TinyDecoder(), options, NeverStops).status(),
                                     MeasureBus(options, NeverStops).status()}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  }
}

}  // namespace
}  // namespace forebay
