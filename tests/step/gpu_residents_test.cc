// Layers that stay on a device, beside others that another source lends.
#include "forebay/step/gpu_residents.h"

#include <memory>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/step/spread_layers.h"
#include "forebay/tests/device/device_fixture.h"
#include "forebay/tests/step/piecewise_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLayerBytes = 320;

// Lends each layer out of one buffer, which it overwrites when the lease ends.
class OneBuffer : public ParamSource {
 public:
  explicit OneBuffer(DeviceKind kind = DeviceKind::kHost) : kind_(kind) {}
  void Expect(std::span<const int> layers) override {
    expected.insert(expected.end(), layers.begin(), layers.end());
  }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    if (layer == broken_layer) return StorageError("the disk is gone");
    acquired.push_back(layer);
    bytes_.assign(kLayerBytes, static_cast<std::byte>(layer));
    return WeightsLease(this, layer, {.dtype = DType::kF32, .data = bytes_, .device = kind_});
  }

  std::vector<int> expected, acquired;
  int broken_layer = -1;

 private:
  void Release(int /*layer*/, Event* done) override {
    EXPECT_EQ(done, nullptr);
    bytes_.assign(kLayerBytes, std::byte{0xee});
  }
  const DeviceKind kind_;
  std::vector<std::byte> bytes_;
};

class GpuResidentsTest : public DeviceTest {
 protected:
  std::vector<std::byte> Read(const WeightsLease& lease) {
    std::vector<std::byte> bytes(lease.weights().data.size());
    EXPECT_EQ(lease.weights().device, device_->kind());
    const auto stream = MakeStream();
    EXPECT_TRUE(stream->CopyToHost(bytes, lease.weights().data.data()).ok());
    EXPECT_TRUE(stream->Await().ok());
    return bytes;
  }
};

TEST_P(GpuResidentsTest, AreCopiedOnceAndLentAgainAndAgain) {
  // Both outlive the residents.
  const auto read = MakeEvent();
  OneBuffer others(device_->kind());
  std::unique_ptr<GpuResidents> residents;
  {
    OneBuffer loader;
    auto made = GpuResidents::Create({{0, 2, 3}}, &loader, device_.get());
    ASSERT_TRUE(made.ok()) << made.status();
    residents = *std::move(made);
    EXPECT_THAT(loader.expected, ElementsAre(0, 2, 3));
    EXPECT_THAT(loader.acquired, ElementsAre(0, 2, 3));
  }
  residents->LendOthersFrom(&others);
  for (int pass = 0; pass < 3; ++pass) {
    residents->Expect({{0, 1, 2, 3, 0}});
    for (const int layer : {0, 1, 2, 3, 0}) {
      auto lease = residents->Acquire(layer);
      ASSERT_TRUE(lease.ok()) << lease.status();
      if (layer == 1) continue;
      EXPECT_EQ(Read(*lease), std::vector(kLayerBytes, static_cast<std::byte>(layer)));
      lease->Release(read.get());
    }
  }
  EXPECT_THAT(others.expected, ElementsAre(1, 1, 1));
  EXPECT_THAT(others.acquired, ElementsAre(1, 1, 1));
}

TEST_P(GpuResidentsTest, ComeWholeFromALoaderThatLendsPieces) {
  OneBuffer loader;
  PiecewiseSource in_pieces(&loader, /*piece_elems=*/24);  // of 80
  auto residents = GpuResidents::Create({{1, 5}}, &in_pieces, device_.get());
  ASSERT_TRUE(residents.ok()) << residents.status();
  EXPECT_THAT(in_pieces.pieces_read(), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  (*residents)->Expect({{1, 5}});
  for (const int layer : {1, 5}) {
    const auto lease = (*residents)->Acquire(layer);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(Read(*lease), std::vector(kLayerBytes, static_cast<std::byte>(layer)));
  }
}

TEST_P(GpuResidentsTest, KeepTheOrderThatWasAnnounced) {
  OneBuffer loader;
  const auto residents = GpuResidents::Create({{0, 1}}, &loader, device_.get());
  ASSERT_TRUE(residents.ok()) << residents.status();
  EXPECT_THAT(MessageOf((*residents)->Acquire(0).status()), HasSubstr("none was announced"));
  (*residents)->Expect({{0, 1}});
  EXPECT_THAT(MessageOf((*residents)->Acquire(1).status()), HasSubstr("0 was announced"));
  EXPECT_TRUE((*residents)->Acquire(0).ok());
  EXPECT_TRUE((*residents)->Acquire(1).ok());
}

TEST_P(GpuResidentsTest, ALayerThatCannotBeReadIsTheLoadersError) {
  OneBuffer loader;
  loader.broken_layer = 1;
  const auto residents = GpuResidents::Create({{0, 1}}, &loader, device_.get());
  EXPECT_THAT(MessageOf(residents.status()), HasSubstr("the disk is gone"));
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuResidentsTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

TEST(SpreadLayers, LiesEvenlyAmongAllOfThem) {
  const std::vector<int> layers = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(SpreadEvenly(layers, 0), ElementsAre());
  EXPECT_THAT(SpreadEvenly(layers, 2), ElementsAre(3, 6));
  EXPECT_THAT(SpreadEvenly(layers, 3), ElementsAre(2, 4, 6));
  EXPECT_EQ(SpreadEvenly(layers, 6), layers);
  EXPECT_EQ(SpreadEvenly(layers, 60), layers);
}

}  // namespace
}  // namespace forebay
