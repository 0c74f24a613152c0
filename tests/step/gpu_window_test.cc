// Layers on a device through a window: on the host's twin, on the emulated GPU and on a real one.
// The source's memory is overwritten as soon as it is given back, and places of the window are
// written to while work still reads them, if an event is missing.
#include "forebay/step/gpu_window.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/tests/device/device_fixture.h"
#include "forebay/tests/step/piecewise_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 6;
constexpr int kBytes = 640;

// Lends layers in few buffers, each filled anew for its access: with the number of that.
class FewBuffers : public ParamSource {
 public:
  explicit FewBuffers(int num_buffers) : buffers_(static_cast<size_t>(num_buffers)) {}
  ~FewBuffers() override {
    for (const Buffer& buffer : buffers_) {
      if (buffer.done == nullptr) continue;
      EXPECT_TRUE(buffer.done->Await().ok());
    }
  }
  void Expect(std::span<const int> layers) override {
    expected.insert(expected.end(), layers.begin(), layers.end());
  }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    if (layer == broken_layer) return StorageError("the disk is gone");
    EXPECT_EQ(layer, expected[static_cast<size_t>(num_acquired)]);
    Buffer& buffer = buffers_[static_cast<size_t>(num_acquired) % buffers_.size()];
    EXPECT_EQ(buffer.layer, -1) << "lent still";
    if (buffer.done != nullptr) {
      EXPECT_TRUE(buffer.done->Await().ok());
    }
    buffer.layer = layer;
    const auto size = static_cast<size_t>(layer_bytes[static_cast<size_t>(layer)]);
    buffer.bytes.assign(size, static_cast<std::byte>(++num_acquired));
    return WeightsLease(this, layer, {.dtype = DType::kF32, .data = buffer.bytes});
  }

  std::vector<int64_t> layer_bytes = std::vector<int64_t>(kLayers, kBytes);
  std::vector<int> expected;
  int num_acquired = 0;
  int broken_layer = -1;

 private:
  struct Buffer {
    std::vector<std::byte> bytes;
    int layer = -1;
    Event* done = nullptr;
  };
  void Release(int layer, Event* done) override {
    const auto buffer = std::ranges::find(buffers_, layer, &Buffer::layer);
    ASSERT_NE(buffer, buffers_.end());
    buffer->layer = -1;
    buffer->done = done;
  }
  std::vector<Buffer> buffers_;
};

class GpuWindowTest : public DeviceTest {
 protected:
  // `piece_elems`: above 0, the source lends layers in such pieces.
  void Make(GpuPlaces places = {.place_bytes = {kBytes, kBytes, kBytes}}, int64_t piece_elems = 0) {
    // In this order: the source ends before the window whose events it waits for.
    source_ = std::make_unique<FewBuffers>(/*num_buffers=*/2);
    if (!places.layer_bytes.empty()) source_->layer_bytes = places.layer_bytes;
    if (piece_elems > 0) {
      in_pieces_ = std::make_unique<PiecewiseSource>(source_.get(), piece_elems);
    }
    ParamSource* const source =
        in_pieces_ == nullptr ? static_cast<ParamSource*>(source_.get()) : in_pieces_.get();
    auto window = GpuWindow::Create(source, device_.get(), std::move(places));
    ASSERT_TRUE(window.ok()) << window.status();
    window_ = *std::move(window);
    compute_ = MakeStream();
    for (int layer = 0; layer < kLayers; ++layer) used_.push_back(MakeEvent());
  }
  void TearDown() override {
    if (compute_ == nullptr) return;  // skipped
    EXPECT_TRUE(compute_->Await().ok());
    source_.reset();
    window_.reset();
  }

  WeightsLease Acquire(int layer) {
    auto lease = window_->Acquire(layer);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *std::move(lease);
  }
  // Has the device read the weights of a lease into a new result.
  void Read(const WeightsLease& lease) {
    results_.emplace_back(lease.weights().data.size());
    EXPECT_EQ(lease.weights().device, device_->kind());
    ASSERT_TRUE(compute_->WaitFor(*lease.weights().ready).ok());
    ASSERT_TRUE(compute_->CopyToHost(results_.back(), lease.weights().data.data()).ok());
  }
  void Release(WeightsLease& lease) {
    Event& used = *used_[static_cast<size_t>(lease.layer())];
    ASSERT_TRUE(compute_->Record(used).ok());
    lease.Release(&used);
  }
  void ExpectEachAccessReadsItsOwnWeights();
  // Each result is of its own access.
  void ExpectResults() {
    ASSERT_TRUE(compute_->Await().ok());
    for (size_t i = 0; i < results_.size(); ++i) {
      EXPECT_EQ(results_[i], std::vector(results_[i].size(), static_cast<std::byte>(i + 1)))
          << "access " << i;
    }
  }

  std::unique_ptr<FewBuffers> source_;
  std::unique_ptr<PiecewiseSource> in_pieces_;
  std::unique_ptr<GpuWindow> window_;
  std::unique_ptr<Stream> compute_;
  std::vector<std::unique_ptr<Event>> used_;
  std::vector<std::vector<std::byte>> results_;
};

void GpuWindowTest::ExpectEachAccessReadsItsOwnWeights() {
  const CounterRng rng(1);
  std::vector<int> order;
  for (int i = 0; i < 60; ++i) order.push_back(static_cast<int>(rng.Words(i)[0] % kLayers));
  results_.reserve(order.size());  // addresses stay
  window_->Expect(order);
  WeightsLease kept;  // of every third, which the next ones are computed beside
  for (size_t i = 0; i < order.size(); ++i) {
    WeightsLease lease = Acquire(order[i]);
    Read(lease);
    if (kept.weights().ready != nullptr && kept.layer() != lease.layer()) Release(kept);
    if (i % 3 == 0 && i + 1 < order.size() && order[i + 1] != lease.layer()) {
      kept = std::move(lease);
    } else {
      Release(lease);
    }
  }
  if (kept.weights().ready != nullptr) Release(kept);
  ExpectResults();
  EXPECT_EQ(window_->copied_bytes(), 60 * kBytes);
}

TEST_P(GpuWindowTest, EachAccessReadsItsOwnWeights) {
  Make();
  ExpectEachAccessReadsItsOwnWeights();
}

TEST_P(GpuWindowTest, SoItDoesWhereTheSourceLendsPieces) {
  Make({.place_bytes = {kBytes, kBytes, kBytes}}, /*piece_elems=*/48);
  ExpectEachAccessReadsItsOwnWeights();
}

TEST_P(GpuWindowTest, AReleaseBringsTheNextLayer) {
  Make();
  window_->Expect({{0, 1, 2}});
  WeightsLease lease = Acquire(0);
  EXPECT_EQ(window_->copied_bytes(), kBytes);
  Release(lease);
  EXPECT_EQ(window_->copied_bytes(), 2 * kBytes);
  lease = Acquire(1);
  EXPECT_EQ(window_->copied_bytes(), 2 * kBytes);
}

TEST_P(GpuWindowTest, WhatIsCancelledIsForgotten) {
  Make();
  results_.reserve(10);
  window_->Expect({{0, 1, 2}});
  WeightsLease lease = Acquire(0);
  Read(lease);
  Release(lease);
  window_->CancelExpected();  // layer 1 is there already
  source_->expected.resize(2);
  EXPECT_THAT(MessageOf(window_->Acquire(1).status()), HasSubstr("none was announced"));
  window_->Expect({{4}});
  lease = Acquire(4);
  Read(lease);
  Release(lease);
  ASSERT_TRUE(compute_->Await().ok());
  EXPECT_EQ(results_[0][0], std::byte{1});
  EXPECT_EQ(results_[1][0], std::byte{3});
}

TEST_P(GpuWindowTest, MistakesAreErrorsThatChangeNothing) {
  Make();
  window_->Expect({{0, 1, 2, 3}});
  EXPECT_THAT(MessageOf(window_->Acquire(2).status()), HasSubstr("0 was announced"));
  std::vector<WeightsLease> leases;
  for (int layer = 0; layer < 2; ++layer) leases.push_back(Acquire(layer));
  leases.push_back(Acquire(2));
  EXPECT_THAT(MessageOf(window_->Acquire(3).status()), HasSubstr("all 3 places"));
  leases.clear();
  EXPECT_TRUE(window_->Acquire(3).ok());
}

TEST_P(GpuWindowTest, AnErrorOfALayerThatIsBroughtAheadIsThatOfItsAcquire) {
  Make();
  source_->broken_layer = 1;
  window_->Expect({{0, 1}});
  WeightsLease lease = Acquire(0);
  Release(lease);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(MessageOf(window_->Acquire(1).status()), HasSubstr("the disk is gone"));
  }
}

constexpr int64_t kSmall = 64;
GpuPlaces PlacesOfAChainWithLargeEnds() {
  Inventory inventory;
  for (int layer = 0; layer < kLayers; ++layer) {
    inventory.BeginLayer("layer");
    const bool is_end = layer == 0 || layer == kLayers - 1;
    inventory.Add("tensor", {(is_end ? kBytes : kSmall) / 4}, 0, /*decay=*/true);
  }
  GpuPlaces places = PlacesOfChain(inventory, DType::kF32);
  // Layers are lent without their padding here.
  places.layer_bytes.assign(kLayers, kSmall);
  places.layer_bytes.front() = places.layer_bytes.back() = kBytes;
  return places;
}

TEST_P(GpuWindowTest, LayersThatAreLargerThanOthersShareOnePlace) {
  const GpuPlaces places = PlacesOfAChainWithLargeEnds();
  EXPECT_EQ(places.place_bytes.size(), 3);
  EXPECT_EQ(places.place_bytes[0], places.place_bytes[1]);
  EXPECT_GE(places.place_bytes[2], kBytes);
  Make({.place_bytes = {kSmall, kSmall, kBytes}, .layer_bytes = places.layer_bytes});
  std::vector<int> order;
  for (int step = 0; step < 3; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) order.push_back(layer);
    for (int layer = kLayers - 2; layer > 0; --layer) order.push_back(layer);
  }
  results_.reserve(order.size());
  window_->Expect(order);
  int64_t bytes = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    WeightsLease lease = Acquire(order[i]);
    bytes += std::ssize(lease.weights().data);
    Read(lease);
    Release(lease);
    // The next one is on its way already.
    EXPECT_EQ(window_->copied_bytes() > bytes, i + 1 < order.size()) << i;
  }
  ExpectResults();
}

TEST_P(GpuWindowTest, ALargePlaceIsLeftToALargeLayerUnlessALayerIsAskedFor) {
  GpuPlaces places = PlacesOfAChainWithLargeEnds();
  places.place_bytes = {kSmall, kSmall, kBytes};
  Make(places);
  window_->Expect({{1, 2, 3, 0}});
  std::vector<WeightsLease> leases;
  leases.push_back(Acquire(1));
  leases.push_back(Acquire(2));
  const int64_t of_two = window_->copied_bytes();
  leases.push_back(Acquire(3));
  EXPECT_EQ(window_->copied_bytes(), of_two + kSmall);
  leases.erase(leases.begin());
  EXPECT_THAT(MessageOf(window_->Acquire(0).status()), HasSubstr("all 1 places"));
  leases.clear();
  EXPECT_EQ(std::ssize(Acquire(0).weights().data), kBytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuWindowTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
