// Runs on an emulated GPU that is lost, at every kind of call, and runs that find none.
#include <cstdlib>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/options.h"
#include "forebay/device/stream_trace.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using emulation::CountersNow;
using emulation::Loss;
using emulation::Options;
using emulation::TheOptions;
using testing::HasSubstr;

class LostGpu : public testing::Test {
 protected:
  ~LostGpu() override { TheOptions() = before_; }

  // Each run measures its products, so that all make the same calls: none finds what another has.
  TrainOptions OnGpu(const std::string& name) const {
    ::setenv("XDG_CACHE_HOME", folder_.Path("cache of " + name).c_str(), 1);
    TrainOptions options = task_.TightRun(folder_.Path(name));
    options.ram_bytes = int64_t{256} << 20;
    options.device = ComputeDevice::kCuda;
    return options;
  }

  // The GPU is lost after so many more calls.
  static void LoseAfter(int64_t calls, Loss by = Loss::kUnavailable) {
    TheOptions().lost_after = static_cast<uint64_t>(CountersNow().num_calls + calls);
    TheOptions().lost_by = by;
  }
  static void GiveBack() { TheOptions().lost_after = UINT64_MAX; }

  const Options before_ = TheOptions();
  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

TEST_F(LostGpu, EndsARunThatGoesOnWithTheSameBits) {
  const int64_t first = CountersNow().num_calls;
  ASSERT_TRUE(TrainToy(OnGpu("whole")).ok());
  const int64_t num_calls = CountersNow().num_calls - first;
  const ToyResult expected = ResultOf(folder_.Path("whole")).value();
  // The first calls make what a run needs, one by one, the next measure algorithms of products, and
  // the last ones give back what was made. Where threads take turns in another way a run may make
  // some calls more or less.
  std::vector<int64_t> places = {0, 2, 5, 13, 34};
  for (int64_t i = 1; i < 9; ++i) places.push_back((i + 3) * num_calls / 12 + i % 5);
  int num_resumed = 0;
  for (const int64_t place : places) {
    SCOPED_TRACE(place);
    const TrainOptions options = OnGpu("lost_" + std::to_string(place));
    LoseAfter(place, place % 2 == 0 ? Loss::kUnavailable : Loss::kEcc);
    const absl::Status status = TrainToy(options);
    GiveBack();
    ASSERT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(place % 2 == 0 ? "DevicesUnavailable" : "ECC error"));
    EXPECT_THAT(MessageOf(status), HasSubstr("The GPU is lost to this process"));
    EXPECT_THAT(MessageOf(status), HasSubstr("--resume"));
    num_resumed += StepsInMetrics(options.out).empty() ? 0 : 1;
    ASSERT_TRUE(TrainToyOn(options).ok());
    EXPECT_EQ(ResultOf(options.out).value(), expected);
  }
  EXPECT_GT(num_resumed, 3);
}

// The recording, which is over the GPU's work, ends with it.
TEST_F(LostGpu, ATracedRunEndsAndGoesOnAsAnyOther) {
  const auto traced = [&](const std::string& name) {
    TrainOptions options = OnGpu(name);
    options.trace = folder_.Path(name + ".json");
    return options;
  };
  const int64_t first = CountersNow().num_calls;
  ASSERT_TRUE(TrainToy(traced("whole")).ok());
  // Beside those that make the trace's events, and end them.
  constexpr int64_t kNumEvents = 2 * StreamTrace::kNumSlices;
  const int64_t num_calls = CountersNow().num_calls - first - 2 * kNumEvents;
  int num_traced = 0;
  for (const int64_t twelfths : {5, 6, 7, 8}) {
    SCOPED_TRACE(twelfths);
    const TrainOptions options = traced("lost_" + std::to_string(twelfths));
    LoseAfter(kNumEvents + twelfths * num_calls / 12);
    const absl::Status status = TrainToy(options);
    GiveBack();
    ASSERT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
    num_traced += FileExists(options.trace) ? 1 : 0;
    TrainOptions resumed = options;
    resumed.trace.clear();
    ASSERT_TRUE(TrainToyOn(resumed).ok());
    EXPECT_EQ(ResultOf(options.out).value(), ResultOf(folder_.Path("whole")).value());
  }
  EXPECT_GT(num_traced, 0);
}

TEST_F(LostGpu, ARunGoesOnWithoutIt) {
  TrainOptions options = OnGpu("without");
  LoseAfter(400);
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kEnvironment);
  options.device = ComputeDevice::kCpu;
  EXPECT_TRUE(TrainToyOn(options).ok());
}

TEST_F(LostGpu, WithoutADriverThatIsNewEnoughNothingIsBegun) {
  for (const auto driver : {Options::Driver::kOld, Options::Driver::kNone}) {
    TheOptions().driver = driver;
    TrainOptions options = OnGpu("old");
    const absl::Status status = TrainToy(options);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
    EXPECT_THAT(MessageOf(status),
                HasSubstr(driver == Options::Driver::kOld ? "Install NVIDIA's driver 580 or newer"
                                                          : "CUDA_VISIBLE_DEVICES"));
    EXPECT_FALSE(IsRunFolder(options.out));
  }
  TrainOptions options = OnGpu("auto");
  options.device = ComputeDevice::kAuto;
  EXPECT_TRUE(TrainToy(options).ok());  // on the CPU
}

}  // namespace
}  // namespace forebay
