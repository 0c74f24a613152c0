// Updates where the device is: the bits of the reference on the host's twin and on a GPU.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/optimizer/kernels/update_cuda.h"
#include "forebay/tests/device/device_fixture.h"
#include "forebay/tests/optimizer/named_optimizers.h"
#include "forebay/tests/optimizer/run_planes.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class UpdateDeviceTest : public DeviceTest {
 protected:
  // A plane of the run on the device; the address in the run is replaced.
  struct Plane {
    DeviceBuffer buffer;
    std::span<std::byte> host;
  };

  template <typename T>
  void Move(T*& address, int64_t size_bytes, Stream& stream, std::vector<Plane>& planes) {
    if (address == nullptr) return;
    auto* const bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(address));
    planes.push_back({Allocate(size_bytes), {bytes, static_cast<size_t>(size_bytes)}});
    ASSERT_TRUE(stream.CopyToDevice(planes.back().buffer.address(), planes.back().host).ok());
    address = static_cast<T*>(planes.back().buffer.address());
  }

  // One update of `run`, whose planes are host memory, on the device.
  void UpdateOnDevice(const OptimizerConfig& config, const UpdateScalars& scalars, TileRun run) {
    const auto stream = MakeStream();
    std::vector<Plane> planes;
    const int64_t n = run.num_elems;
    const int64_t num_blocks = (n + kMomentBlockElems - 1) / kMomentBlockElems;
    const int64_t moment_bytes = MomentBytesPerElem(run.moments);
    Move(run.weight, n * WeightBytesPerElem(run.weights), *stream, planes);
    Move(run.remainder, n * 2, *stream, planes);
    Move(run.master, n * 4, *stream, planes);
    Move(run.m, n * moment_bytes, *stream, planes);
    Move(run.v, n * moment_bytes, *stream, planes);
    Move(run.m_scale, num_blocks * 2, *stream, planes);
    Move(run.v_scale, num_blocks * 2, *stream, planes);
    Move(run.gradient, n * SizeOf(run.gradient_dtype), *stream, planes);
    if (device_->kind() == DeviceKind::kCuda) {
      const absl::Status status = stream->Launch(
          [&](void* native_stream) { return UpdateRunCuda(config, scalars, run, native_stream); });
      ASSERT_TRUE(status.ok()) << status;
    } else {
      UpdateRun(config, scalars, run);
    }
    for (const Plane& plane : planes) {
      ASSERT_TRUE(stream->CopyToHost(plane.host, plane.buffer.address()).ok());
    }
    ASSERT_TRUE(stream->Await().ok());
  }

  // Two updates, so that the second begins with what the first left.
  void ExpectBitsOfTheReference(const OptimizerConfig& config, const RunPlanes& start) {
    RunPlanes expected = start;
    RunPlanes actual = start;
    const auto run_of = [&](RunPlanes& planes) {
      TileRun run = planes.Run();
      run.weight_decay = 0.1;
      if (!HasFirstMoment(config)) run.m = run.m_scale = nullptr;
      if (!HasSecondMoment(config)) run.v = run.v_scale = nullptr;
      return run;
    };
    for (int64_t step = 1; step <= 2; ++step) {
      const UpdateScalars scalars = {.step = step, .lr = 1e-3, .gradient_scale = 0.37};
      UpdateRunRef(config, scalars, run_of(expected));
      ASSERT_NO_FATAL_FAILURE(UpdateOnDevice(config, scalars, run_of(actual)));
    }
    for (int64_t i = 0; i < start.size(); ++i) {
      ASSERT_TRUE(SameValue(actual.Master(i), expected.Master(i))) << "weight " << i;
      ASSERT_TRUE(SameValue(actual.M(i), expected.M(i))) << "m " << i;
      ASSERT_TRUE(SameValue(actual.V(i), expected.V(i))) << "v " << i;
    }
    ASSERT_EQ(actual.m_scale, expected.m_scale);
    ASSERT_EQ(actual.v_scale, expected.v_scale);
  }
};

TEST_P(UpdateDeviceTest, LeavesTheBitsOfTheReferenceOnTrainingValues) {
  const CounterRng rng(/*seed=*/2);
  for (const RunFormat& format : AllRunFormats()) {
    RunPlanes start(format, 10'001);
    for (int64_t i = 0; i < start.size(); ++i) {
      start.SetMaster(i, static_cast<float>(0.02 * rng.Normal(4 * i)));
      start.SetMoments(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 1)),
                       static_cast<float>(1e-6 * std::abs(rng.Normal(4 * i + 2))));
      start.SetGradient(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 3)));
    }
    for (const NamedOptimizer& optimizer : kOptimizers) {
      SCOPED_TRACE(optimizer.name + NameOf(format));
      ExpectBitsOfTheReference(optimizer.config, start);
    }
  }
}

TEST_P(UpdateDeviceTest, LeavesTheBitsOfTheReferenceOnRandomBitPatterns) {
  const CounterRng rng(/*seed=*/4);
  for (const RunFormat& format : AllRunFormats()) {
    // How what is no number is rounded to fewer bits is open.
    if (format.moments != MomentFormat::kFp32) continue;
    RunPlanes start(format, 50'000);
    for (int64_t i = 0; i < start.size(); ++i) {
      const auto words = rng.Words(i);
      start.SetMaster(i, std::bit_cast<float>(words[0]));
      start.SetMoments(i, std::bit_cast<float>(words[1]), std::bit_cast<float>(words[2]));
      start.SetGradient(i, std::bit_cast<float>(words[3]));
    }
    SCOPED_TRACE(NameOf(format));
    ExpectBitsOfTheReference({}, start);
  }
}

// 0x7fffffff is what a GPU's arithmetic gives; the upper half of the others is no NaN by itself.
TEST_P(UpdateDeviceTest, WhatIsNoNumberIsNoneInAnyPlane) {
  constexpr int64_t kBad = 7;
  for (const RunFormat& format : AllRunFormats()) {
    if (format.gradient_dtype != DType::kF32) continue;  // the others hold no such bits
    for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
      SCOPED_TRACE(testing::Message() << NameOf(format) << " " << std::hex << bits);
      RunPlanes planes(format, 2 * kMomentBlockElems);
      for (int64_t i = 0; i < planes.size(); ++i) {
        planes.SetMaster(i, 1.0f);
        planes.SetGradient(i, i == kBad ? std::bit_cast<float>(bits) : 1e-3f);
      }
      ASSERT_NO_FATAL_FAILURE(UpdateOnDevice({}, {.step = 1, .lr = 1e-3}, planes.Run()));
      EXPECT_TRUE(std::isnan(planes.Weight(kBad)));
      EXPECT_TRUE(std::isnan(planes.Master(kBad)));
      EXPECT_TRUE(std::isnan(planes.M(kBad)));
      EXPECT_TRUE(std::isnan(planes.V(kBad)));
      for (int64_t i = 0; i < planes.size(); ++i) {
        if (i == kBad) continue;
        ASSERT_EQ(planes.Weight(i), planes.Weight(i == 0 ? 1 : 0)) << i;
        // Moments of 8 bits have one scale a block.
        if (format.moments == MomentFormat::kInt8 && i < kMomentBlockElems) continue;
        ASSERT_GT(planes.M(i), 0.0f) << i;
      }
    }
  }
}

// Scalars of a parameter group, in place of the configuration's.
TEST_P(UpdateDeviceTest, TakesTheConstantsOfTheScalarsForThoseOfTheConfiguration) {
  const CounterRng rng(/*seed=*/6);
  for (const RunFormat& format : AllRunFormats()) {
    RunPlanes start(format, 1'000);
    for (int64_t i = 0; i < start.size(); ++i) {
      start.SetMaster(i, static_cast<float>(0.02 * rng.Normal(2 * i)));
      start.SetGradient(i, static_cast<float>(1e-3 * rng.Normal(2 * i + 1)));
    }
    for (const NamedOptimizer& optimizer : kOptimizers) {
      SCOPED_TRACE(optimizer.name + NameOf(format));
      OptimizerConfig own = optimizer.config;
      own.beta1 = 0.7;
      own.beta2 = 0.8;
      own.eps = 1e-3;
      if (HasFirstMoment(own)) own.momentum = 0.7;
      RunPlanes expected = start;
      RunPlanes actual = start;
      const auto run_of = [&](RunPlanes& planes) {
        TileRun run = planes.Run();
        if (!HasFirstMoment(own)) run.m = run.m_scale = nullptr;
        if (!HasSecondMoment(own)) run.v = run.v_scale = nullptr;
        return run;
      };
      const UpdateScalars scalars = {.step = 3, .lr = 1e-3};
      UpdateScalars of_group = scalars;
      of_group.beta1 = own.beta1;
      of_group.beta2 = own.beta2;
      of_group.eps = own.eps;
      UpdateRunRef(own, scalars, run_of(expected));
      ASSERT_NO_FATAL_FAILURE(UpdateOnDevice(optimizer.config, of_group, run_of(actual)));
      for (int64_t i = 0; i < start.size(); ++i) {
        ASSERT_TRUE(SameValue(actual.Master(i), expected.Master(i))) << "weight " << i;
        ASSERT_TRUE(SameValue(actual.M(i), expected.M(i))) << "m " << i;
        ASSERT_TRUE(SameValue(actual.V(i), expected.V(i))) << "v " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, UpdateDeviceTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
