// AdamW where the device is: the bits of the reference on the host's twin and on a GPU.
#include <cmath>
#include <string>
#include <vector>

#include "forebay/optimizer/kernels/adamw_cuda.h"
#include "forebay/tests/device/device_fixture.h"
#include "forebay/tests/optimizer/adamw_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class AdamWDeviceTest : public DeviceTest {
 protected:
  // A plane of the tile on the device; the address in the tile is replaced.
  struct Plane {
    DeviceBuffer buffer;
    std::span<std::byte> host;
  };

  template <typename T>
  void Move(T*& address, int64_t size_bytes, Stream& stream, std::vector<Plane>& planes) {
    auto* const bytes = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(address));
    planes.push_back({Allocate(size_bytes), {bytes, static_cast<size_t>(size_bytes)}});
    ASSERT_TRUE(stream.CopyToDevice(planes.back().buffer.address(), planes.back().host).ok());
    address = static_cast<T*>(planes.back().buffer.address());
  }

  // One step of `tile`, whose planes are host memory, on the device.
  void StepOnDevice(const AdamWConfig& config, const AdamWStep& step, AdamWTile tile) {
    const auto stream = MakeStream();
    std::vector<Plane> planes;
    Move(tile.weight, tile.num_elems * WeightBytesPerElem(tile.layout), *stream, planes);
    if (tile.remainder != nullptr) Move(tile.remainder, tile.num_elems * 2, *stream, planes);
    Move(tile.m, tile.num_elems * 4, *stream, planes);
    Move(tile.v, tile.num_elems * 4, *stream, planes);
    Move(tile.gradient, tile.num_elems * (tile.gradient_is_bf16 ? 2 : 4), *stream, planes);
    if (device_->kind() == DeviceKind::kCuda) {
      const absl::Status status = AdamWCuda(config, step, tile, stream->native_handle());
      ASSERT_TRUE(status.ok()) << status;
    } else {
      AdamWSimd(config, step, tile);
    }
    for (const Plane& plane : planes) {
      ASSERT_TRUE(stream->CopyToHost(plane.host, plane.buffer.address()).ok());
    }
    ASSERT_TRUE(stream->Await().ok());
  }

  // Two steps, so that the second begins with what the first left.
  void ExpectBitsOfTheReference(const AdamWVectors& start) {
    const AdamWConfig config = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    AdamWVectors expected = start;
    AdamWVectors actual = start;
    for (int64_t step = 1; step <= 2; ++step) {
      const AdamWStep scalars = {.step = step, .lr = 1e-3, .gradient_scale = 0.37};
      AdamWRef(config, scalars, expected.Tile(0, start.size(), true));
      ASSERT_NO_FATAL_FAILURE(StepOnDevice(config, scalars, actual.Tile(0, start.size(), true)));
    }
    for (int64_t i = 0; i < start.size(); ++i) {
      ASSERT_TRUE(SameFloat(actual.Master(i), expected.Master(i))) << "weight " << i;
      ASSERT_TRUE(SameFloat(actual.m[i], expected.m[i])) << "m " << i;
      ASSERT_TRUE(SameFloat(actual.v[i], expected.v[i])) << "v " << i;
    }
  }

  template <typename Check>
  void ForEachVariant(int64_t num_elems, const Check& check) {
    for (const Layout layout : {Layout::kBf16, Layout::kFp32}) {
      for (const bool gradient_is_bf16 : {true, false}) {
        SCOPED_TRACE(std::string(NameOf(layout)) + (gradient_is_bf16 ? ", bf16" : ", fp32"));
        check(AdamWVectors(layout, gradient_is_bf16, num_elems));
      }
    }
  }
};

TEST_P(AdamWDeviceTest, LeavesTheBitsOfTheReferenceOnTrainingValues) {
  ForEachVariant(10'001, [this](AdamWVectors start) {
    const CounterRng rng(/*seed=*/2);
    for (int64_t i = 0; i < start.size(); ++i) {
      start.SetMaster(i, static_cast<float>(0.02 * rng.Normal(4 * i)));
      start.m[i] = static_cast<float>(1e-3 * rng.Normal(4 * i + 1));
      start.v[i] = static_cast<float>(1e-6 * std::abs(rng.Normal(4 * i + 2)));
      start.SetGradient(i, static_cast<float>(1e-3 * rng.Normal(4 * i + 3)));
    }
    ExpectBitsOfTheReference(start);
  });
}

TEST_P(AdamWDeviceTest, LeavesTheBitsOfTheReferenceOnRandomBitPatterns) {
  ForEachVariant(100'000, [this](AdamWVectors start) {
    const CounterRng rng(/*seed=*/4);
    for (int64_t i = 0; i < start.size(); ++i) {
      const auto words = rng.Words(i);
      start.SetMaster(i, BitsAsFloat(words[0]));
      start.m[i] = BitsAsFloat(words[1]);
      start.v[i] = BitsAsFloat(words[2]);
      start.SetGradient(i, BitsAsFloat(words[3]));
    }
    ExpectBitsOfTheReference(start);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, AdamWDeviceTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
