// Whole training runs on a GPU, beside each other and beside the CPU.
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/device/device.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class GpuRun : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }

  TrainOptions OnGpu(const std::string& name) const {
    TrainOptions options = task_.TightRun(folder_.Path(name));
    options.ram_bytes = int64_t{256} << 20;
    options.device = ComputeDevice::kCuda;
    return options;
  }
  TrainOptions InFp32(TrainOptions options) const {
    const TrainOptions fp32 = task_.RoomyRun(options.out);
    options.precision = fp32.precision;
    options.layout = fp32.layout;
    options.grad_dtype = fp32.grad_dtype;
    options.export_dtype = fp32.export_dtype;
    return options;
  }

  ToyResult Trained(const TrainOptions& options) const {
    const absl::Status status = TrainToy(options);
    EXPECT_TRUE(status.ok()) << status;
    const auto result = ResultOf(options.out);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(ToyResult());
  }

  // By step, of a run that has ended.
  static std::vector<double> LossesOf(const std::string& out) {
    std::vector<double> losses;
    std::ifstream file(RunPaths(out).metrics);
    for (std::string line; std::getline(file, line);) {
      const Json step = Json::parse(line);
      if (step["step"] > 0) losses.push_back(step["loss"].get<double>());
    }
    return losses;
  }

  void ExpectNearTheCpu(TrainOptions options, double tolerance) {
    Trained(options);
    const std::vector<double> on_gpu = LossesOf(options.out);
    options.device = ComputeDevice::kCpu;
    options.out += "_cpu";
    Trained(options);
    const std::vector<double> on_cpu = LossesOf(options.out);
    ASSERT_EQ(on_gpu.size(), static_cast<size_t>(kToySteps));
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      EXPECT_NEAR(on_gpu[i], on_cpu[i], tolerance * on_cpu[i]) << i;
    }
    EXPECT_GT(std::abs(on_cpu.back() - on_cpu.front()), 10 * tolerance * on_cpu.front());
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

TEST_F(GpuRun, HasTheSameBitsWhereverStateLies) {
  const ToyResult expected = Trained(OnGpu("nvme"));
  TrainOptions options = OnGpu("host");
  options.weights_tier = options.state_tier = TierChoice::kHost;
  EXPECT_EQ(Trained(options), expected);
  options = OnGpu("gpu");
  options.state_tier = TierChoice::kDevice;
  options.durability = Durability::kNone;
  EXPECT_EQ(Trained(options), expected);
  options = OnGpu("threads");
  options.engine = EngineKind::kThreads;
  options.threads = 1;
  options.tile_elems = 2048;
  EXPECT_EQ(Trained(options), expected);
  options = OnGpu("spilled");
  options.gradients_tier = TierChoice::kNvme;
  EXPECT_EQ(Trained(options), expected);
  options = OnGpu("other");
  options.seed = 10;
  EXPECT_NE(Trained(options), expected);
}

TEST_F(GpuRun, AnUpdateInTheBackwardPassHasTheSameBits) {
  TrainOptions options = OnGpu("held");
  options.clip = 0;
  const ToyResult expected = Trained(options);
  options.out = folder_.Path("speculative");
  options.gradients = GradientChoice::kSpeculate;
  EXPECT_EQ(Trained(options), expected);
  options.clip = 1e-3;  // every step is computed twice
  options.out = folder_.Path("repeated");
  const ToyResult repeated = Trained(options);
  options.state_tier = TierChoice::kDevice;
  options.out = folder_.Path("repeated_with_state_there");
  EXPECT_EQ(Trained(options), repeated);
  options.gradients = GradientChoice::kHold;
  options.out = folder_.Path("clipped");
  EXPECT_EQ(Trained(options), repeated);
}

// Gives the plan of the run.
class PlanObserver : public SilentObserver {
 public:
  void OnPlan(const std::string&, const Json& json) override { plan = json; }
  Json plan;
};

class SpilledActivationsOfGpu : public GpuRun, public testing::WithParamInterface<ActivationsTier> {
 protected:
  std::string InTier() const {
    return GetParam() == ActivationsTier::kRam ? "activations_in_ram" : "activations_on_nvme";
  }
};

TEST_P(SpilledActivationsOfGpu, HaveTheBitsOfThoseThatStayThere) {
  const TemporaryFolder folder;
  constexpr int kNumBlocks = 6;
  TrainOptions options = ToyTask(folder.path(), kNumBlocks).TightRun(folder.Path("resident"));
  options.ram_bytes = int64_t{256} << 20;
  options.device = ComputeDevice::kCuda;
  PlanObserver observer;
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  EXPECT_EQ(observer.plan["gpu"][InTier()], 0);
  const auto expected = ResultOf(options.out);
  // Three stay on the GPU: of the embedding and the blocks, as many leave it as have to.
  options.activations_tier = GetParam();
  for (int num_spilled = 1; num_spilled <= kNumBlocks + 1 - 3; ++num_spilled) {
    options.gpu_mem_bytes = observer.plan["gpu"]["bytes"].get<int64_t>() - 1;
    options.out = folder.Path(std::to_string(num_spilled));
    ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
    EXPECT_EQ(observer.plan["gpu"][InTier()], num_spilled);
    EXPECT_EQ(*ResultOf(options.out), *expected);
  }
  options.gpu_mem_bytes = observer.plan["gpu"]["bytes"].get<int64_t>() - 1;
  options.out = folder.Path("too_small");
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kDoesNotFit);
}

INSTANTIATE_TEST_SUITE_P(Tiers, SpilledActivationsOfGpu,
                         testing::Values(ActivationsTier::kRam, ActivationsTier::kNvme),
                         [](const auto& each) { return std::string(NameOf(each.param)); });

// Segments of 2, 3 and 4 of seven blocks, of each as many inputs in RAM as may be. Each run without
// room for one activation less is the next.
class SegmentsOnGpu : public GpuRun, public testing::WithParamInterface<int> {};

TEST_P(SegmentsOnGpu, HaveTheBitsOfLayersThatAllKeepTheirInput) {
  const TemporaryFolder folder;
  constexpr int kNumBlocks = 7;
  TrainOptions options = ToyTask(folder.path(), kNumBlocks).TightRun(folder.Path("whole"));
  options.ram_bytes = int64_t{256} << 20;
  options.device = ComputeDevice::kCuda;
  PlanObserver observer;
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  const auto expected = ResultOf(options.out);
  const int64_t whole_bytes = observer.plan["gpu"]["bytes"];

  const int segment = GetParam();
  options.number_checkpoints = (kNumBlocks + segment - 1) / segment;
  const Chain chain = {.num_layers = kNumBlocks + 2, .segment_layers = segment};
  const int most_spilled = MostSpilledActivations(chain);
  for (int num_spilled = 0; num_spilled <= most_spilled; ++num_spilled) {
    options.out = folder.Path(std::to_string(num_spilled));
    ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
    EXPECT_EQ(observer.plan["recompute"]["segment_layers"], segment);
    EXPECT_EQ(observer.plan["gpu"]["activations_in_ram"], num_spilled);
    EXPECT_EQ(*ResultOf(options.out), *expected) << num_spilled;
    options.gpu_mem_bytes = observer.plan["gpu"]["bytes"].get<int64_t>() - 1;
    EXPECT_LT(options.gpu_mem_bytes, whole_bytes);
  }
  options.out = folder.Path("too_small");
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kDoesNotFit);
}

INSTANTIATE_TEST_SUITE_P(Layers, SegmentsOnGpu, testing::Values(2, 3, 4));

TEST_F(GpuRun, SegmentsThatAreUpdatedInTheBackwardPassOrStoppedHaveTheSameBits) {
  const TemporaryFolder folder;
  TrainOptions options = ToyTask(folder.path(), /*num_blocks=*/5).TightRun(folder.Path("whole"));
  options.ram_bytes = int64_t{256} << 20;
  options.device = ComputeDevice::kCuda;
  const ToyResult expected = Trained(options);
  options.number_checkpoints = 3;
  options.gradients = GradientChoice::kSpeculate;
  options.out = folder.Path("speculative");
  EXPECT_EQ(Trained(options), expected);
  options.out = folder.Path("stopped");
  options.stop_after = 1;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.stop_after = 0;
  options.resume = true;
  options.number_checkpoints = 2;
  int polls = 0;
  SilentObserver observer;
  const absl::Status stopped =
      Train(ResolvedFrom(options, "test"), [&] { return ++polls > 15; }, observer, {});
  EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted) << stopped;
  EXPECT_EQ(Trained(options), expected);
}

// Between steps, and in the midst of one.
TEST_F(GpuRun, ARunThatWasStoppedHasTheBitsOfOneThatWasNot) {
  const ToyResult expected = Trained(OnGpu("whole"));
  TrainOptions options = OnGpu("stopped");
  options.stop_after = 1;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.stop_after = 0;
  options.resume = true;
  int polls = 0;
  SilentObserver observer;
  const absl::Status stopped =
      Train(ResolvedFrom(options, "test"), [&] { return ++polls > 9; }, observer, {});
  EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted) << stopped;
  options.state_tier = TierChoice::kDevice;
  EXPECT_EQ(Trained(options), expected);
}

// Weights, moments and data are the run's; only the last bits of what comes are the device's.
TEST_F(GpuRun, GoesOnOnTheCpuAndBack) {
  TrainOptions options = InFp32(OnGpu("moved"));
  options.stop_after = 1;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.resume = true;
  options.device = ComputeDevice::kCpu;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  options.device = ComputeDevice::kCuda;
  options.stop_after = 0;
  Trained(options);
  const TrainOptions whole = InFp32(OnGpu("whole"));
  Trained(whole);
  const std::vector<double> moved = LossesOf(options.out), expected = LossesOf(whole.out);
  ASSERT_EQ(moved.size(), expected.size());
  for (size_t i = 0; i < moved.size(); ++i) EXPECT_NEAR(moved[i], expected[i], 1e-5 * moved[i]);
}

TEST_F(GpuRun, LossesInFp32AreThoseOfTheCpu) {
  ExpectNearTheCpu(InFp32(OnGpu("fp32")), 1e-5);
}

TEST_F(GpuRun, LossesInBf16AreNearThem) {
  ExpectNearTheCpu(OnGpu("bf16"), 2e-3);
}

TEST_F(GpuRun, EvaluatesOnTheGpu) {
  TrainOptions options = InFp32(OnGpu("evaluated"));
  options.eval_data = options.data;
  Trained(options);
  options.device = ComputeDevice::kCpu;
  options.out = folder_.Path("evaluated_cpu");
  Trained(options);
  const auto last_line = [](const std::string& out) {
    std::ifstream file(RunPaths(out).metrics);
    std::string line, last;
    while (std::getline(file, line)) last = line;
    return Json::parse(last);
  };
  const double on_gpu = last_line(folder_.Path("evaluated"))["eval_loss"].get<double>();
  EXPECT_NEAR(on_gpu, last_line(options.out)["eval_loss"].get<double>(), 1e-5 * on_gpu);
}

TEST_F(GpuRun, WithTooLittleMemoryThereNothingIsBegun) {
  TrainOptions options = OnGpu("small");
  options.gpu_mem_bytes = int64_t{1} << 20;
  const absl::Status refused = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused), HasSubstr("--gpu_mem="));
  EXPECT_FALSE(IsRunFolder(options.out));
}

}  // namespace
}  // namespace forebay
