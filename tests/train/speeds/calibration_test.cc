#include "forebay/train/speeds/calibration.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Lt;

class CalibrationTest : public testing::Test {
 protected:
  CalibrationTest() {
    options_.batch = 2;
    options_.seq = 32;
    options_.threads = 1;
    options_.ram_bytes = int64_t{1} << 30;
    limits_.disks = {{.folder = folder_.Path("swap"), .file_system = 1}};
  }
  // Each measurement finds another speed.
  Calibration Open() {
    SpeedMeasures measures;
    measures.block = [this](auto&&...) { return ++speed_; };
    measures.update = [this](auto&&...) { return ++speed_; };
    measures.disk = [this](auto&&...) {
      ++speed_;
      return DiskSpeed{.read_bytes_per_s = speed_, .write_bytes_per_s = speed_};
    };
    measures.gpu_block = [this](auto&&...) { return ++speed_; };
    measures.bus = [this](auto&&...) { return ++speed_; };
    return Calibration(SpeedCache(folder_.Path("speeds")), measures);
  }
  // The parts that were measured, in the order of their first turns.
  std::vector<std::string> Measure(Calibration& calibration) {
    std::vector<std::string> parts;
    const absl::Status status = calibration.Measure(
        model_, options_, limits_, [] { return false; },
        [&](std::string_view part, double fraction) {
          if (!std::ranges::count(parts, part)) parts.emplace_back(part);
          EXPECT_THAT(fraction, AllOf(Ge(0), Lt(1)));
        });
    EXPECT_EQ(status, absl::OkStatus());
    return parts;
  }
  MachineLimits Known(const Calibration& calibration) const {
    MachineLimits limits = limits_;
    calibration.AddTo(model_, options_, limits);
    return limits;
  }
  bool IsAllKnown(const Calibration& calibration) const {
    const MachineLimits limits = Known(calibration);
    return limits.speeds.matmul_flops_per_s > 0 && limits.speeds.memory_bytes_per_s > 0 &&
           limits.disks[0].read_bytes_per_s > 0 && limits.disks[0].write_bytes_per_s > 0;
  }

  TemporaryFolder folder_;
  double speed_ = 1e9;
  DecoderConfig model_ = TinyDecoder();
  TrainOptions options_;
  MachineLimits limits_;
};

TEST_F(CalibrationTest, IsMeasuredOnceAndKnownToLaterPlansOfTheSameKind) {
  Calibration first = Open();
  EXPECT_FALSE(IsAllKnown(first));
  EXPECT_THAT(Measure(first),
              ElementsAre("measuring the disk", "measuring the CPU", "measuring RAM"));
  EXPECT_THAT(Measure(first), ElementsAre());
  EXPECT_THAT(first.TakeNotes(), ElementsAre());

  Calibration later = Open();
  EXPECT_TRUE(IsAllKnown(later));
  EXPECT_EQ(Known(later).speeds.matmul_flops_per_s, Known(first).speeds.matmul_flops_per_s);
  EXPECT_THAT(Known(later).speeds.origin, HasSubstr("measured just now"));
  // The layout is in the key of the update's speed, the hidden size in that of the blocks.
  options_.layout = Layout::kInt8Moments;
  EXPECT_FALSE(IsAllKnown(later));
  EXPECT_GT(Known(later).speeds.matmul_flops_per_s, 0);
  EXPECT_THAT(Measure(later), ElementsAre("measuring the disk", "measuring the CPU",
                                          "measuring RAM"));  // anew, as it was asked to
  model_.hidden_size = 128;
  EXPECT_THAT(Measure(later), ElementsAre("measuring the CPU"));
}

// As where another program takes the machine for two of five turns.
TEST_F(CalibrationTest, TurnsInWhichTheMachineIsBusyDoNotCount) {
  int turn = 0;
  SpeedMeasures measures;
  measures.disk = [](auto&&...) { return DiskSpeed{3e9, 2e9}; };
  measures.block = [&](auto&&...) { return turn % 5 == 1 || turn % 5 == 2 ? 1e9 : 4e9; };
  measures.update = [&](auto&&...) { return turn++ % 5 < 2 ? 1e9 : 5e9; };
  Calibration calibration(std::nullopt, measures);
  EXPECT_THAT(Measure(calibration),
              ElementsAre("measuring the disk", "measuring the CPU", "measuring RAM"));
  EXPECT_EQ(turn, 5);
  EXPECT_EQ(Known(calibration).speeds.matmul_flops_per_s, 4e9);
  EXPECT_EQ(Known(calibration).speeds.memory_bytes_per_s, 5e9);
  EXPECT_EQ(Known(calibration).disks[0].read_bytes_per_s, 3e9);
  EXPECT_EQ(Known(calibration).disks[0].write_bytes_per_s, 2e9);
}

TEST_F(CalibrationTest, OneThatIsStoppedKeepsNothing) {
  int num_measured = 0;
  SpeedMeasures measures;
  measures.disk = [](auto&&...) { return DiskSpeed{3e9, 2e9}; };
  measures.block = [&](auto&&...) -> absl::StatusOr<double> {
    if (++num_measured == 3) return InterruptedError("stopped on request");
    return 1e9;
  };
  measures.update = [&](auto&&...) { return 1e9; };
  Calibration calibration(SpeedCache(folder_.Path("speeds")), measures);
  const absl::Status status = calibration.Measure(
      model_, options_, limits_, [] { return false; }, [](std::string_view, double) {});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted);
  EXPECT_EQ(Known(calibration).speeds.memory_bytes_per_s, 0);
}

TEST_F(CalibrationTest, ADamagedFileIsMeasuredAnew) {
  Calibration first = Open();
  Measure(first);
  const auto names = ListFolder(folder_.Path("speeds"));
  ASSERT_EQ(names->size(), 3);
  for (const std::string& name : *names) {
    ASSERT_TRUE(WriteFileAtomically(JoinPath(folder_.Path("speeds"), name), "{").ok());
  }
  Calibration later = Open();
  EXPECT_EQ(Known(later).speeds.matmul_flops_per_s, 0);
  EXPECT_EQ(Known(later).disks[0].read_bytes_per_s, 0);
  Measure(later);
  EXPECT_TRUE(IsAllKnown(later));
}

TEST_F(CalibrationTest, WhereNothingCanBeKeptItHoldsForThisPlan) {
  ASSERT_TRUE(WriteFileAtomically(folder_.Path("speeds"), "a file").ok());
  Calibration calibration = Open();
  Measure(calibration);
  EXPECT_TRUE(IsAllKnown(calibration));
  EXPECT_THAT(calibration.TakeNotes(), ElementsAre(HasSubstr("are not kept for later plans")));
  EXPECT_THAT(calibration.TakeNotes(), ElementsAre());
}

TEST_F(CalibrationTest, WhatIsKnownOfADiskIsLeftAlone) {
  limits_.disks[0].read_bytes_per_s = limits_.disks[0].write_bytes_per_s = 5;
  Calibration calibration = Open();
  EXPECT_THAT(Measure(calibration), ElementsAre("measuring the CPU", "measuring RAM"));
  EXPECT_EQ(Known(calibration).disks[0].read_bytes_per_s, 5);
  EXPECT_THAT(Known(calibration).speeds.origin, HasSubstr("the disk as --bench has it"));
}

TEST_F(CalibrationTest, SpeedsGiveAPlanItsForecastAndChangeNothingElseWhereAllIsChosen) {
  options_.recompute = Recompute::kAll;
  Calibration calibration = Open();
  const Plan before = *MakePlan(model_, options_, limits_);
  EXPECT_EQ(ToJson(*MakePlan(model_, options_, Known(calibration))), ToJson(before));
  Measure(calibration);
  const Plan plan = *MakePlan(model_, options_, Known(calibration));
  ASSERT_TRUE(plan.forecast.has_value());
  Json with_forecast = ToJson(plan);
  EXPECT_GT(with_forecast["forecast"]["step_s"], 0);
  EXPECT_THAT(with_forecast["forecast"]["speeds"].get<std::string>(), HasSubstr("measured"));
  with_forecast["forecast"] = nullptr;
  with_forecast["io_seconds_per_step"] = nullptr;
  EXPECT_EQ(with_forecast, ToJson(before));
}

TEST_F(CalibrationTest, AGpuHasSpeedsOfItsOwn) {
  Calibration calibration = Open();
  Measure(calibration);
  const MachineSpeeds of_cpu = Known(calibration).speeds;
  options_.device = ComputeDevice::kAuto;
  limits_.gpu = {.name = "a card (CUDA device 0)", .free_bytes = int64_t{1} << 30};
  EXPECT_EQ(Known(calibration).speeds.matmul_flops_per_s, 0);
  EXPECT_EQ(Known(calibration).speeds.bus_bytes_per_s, 0);
  EXPECT_THAT(Measure(calibration), ElementsAre("measuring the GPU", "measuring the GPU's bus"));
  const MachineSpeeds of_gpu = Known(Open()).speeds;
  EXPECT_NE(of_gpu.matmul_flops_per_s, of_cpu.matmul_flops_per_s);
  EXPECT_GT(of_gpu.matmul_flops_per_s, 0);
  EXPECT_GT(of_gpu.bus_bytes_per_s, 0);
  EXPECT_EQ(of_gpu.memory_bytes_per_s, of_cpu.memory_bytes_per_s);
  // Another card, or the same one in another place.
  limits_.gpu.name = "a card (CUDA device 1)";
  EXPECT_EQ(Known(Open()).speeds.matmul_flops_per_s, 0);
  EXPECT_EQ(Known(Open()).speeds.bus_bytes_per_s, 0);
}

TEST_F(CalibrationTest, APlanForAGpuThatIsNotHereHasNoSpeeds) {
  Calibration calibration = Open();
  options_.device = ComputeDevice::kAuto;
  limits_.gpu = {.name = "a card (CUDA device 0)", .free_bytes = int64_t{1} << 30};
  Measure(calibration);
  options_.device = ComputeDevice::kCuda;
  limits_.gpu = {};
  EXPECT_EQ(Known(calibration).speeds.matmul_flops_per_s, 0);
  EXPECT_EQ(Known(calibration).speeds.memory_bytes_per_s, 0);
}

}  // namespace
}  // namespace forebay
