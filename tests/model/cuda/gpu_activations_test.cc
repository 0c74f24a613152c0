// Activations that leave a device and come back, in the order of a step's operations. Buffers are
// overwritten as soon as that is allowed: what is not waited for shows as the wrong bytes, and to
// TSan as a race.
#include "forebay/model/cuda_decoder/gpu_activations.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/device/device_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int kNumLayers = 10;
constexpr int kNumActivations = kNumLayers - 1;
constexpr int64_t kBytes = 192;
constexpr int64_t kStorageBufferBytes = 256;  // which are whole blocks of its disk
constexpr std::byte kJunk{0xee};

// Takes what it writes, and gives what it reads, at the last moment: when it is awaited, or its
// buffer is used again.
class LateStorage : public ActivationStorage {
 public:
  LateStorage(Device* device, int num_buffers)
      : memory_(static_cast<size_t>(num_buffers * kStorageBufferBytes)),
        under_way_(static_cast<size_t>(num_buffers)) {
    pinned_ = *device->Pin(memory_);
  }
  std::span<std::byte> buffers() const override { return memory_; }
  int num_buffers() const override { return static_cast<int>(under_way_.size()); }
  void StartWrite(int layer) override {
    EXPECT_EQ(UnderWay(layer).layer, -1);
    UnderWay(layer) = {layer, /*is_read=*/false};
    ++num_writes;
  }
  void StartRead(int layer) override {
    EXPECT_EQ(UnderWay(layer).layer, -1);
    EXPECT_FALSE(written_[layer].empty()) << layer;
    UnderWay(layer) = {layer, /*is_read=*/true};
    std::ranges::fill(BufferOf(layer), kJunk);
  }
  absl::Status Await(int layer) override {
    if (layer < 0 || UnderWay(layer).layer != layer) return absl::OkStatus();
    const bool is_read = std::exchange(UnderWay(layer), {}).is_read;
    if (layer == broken_layer) return StorageError("the disk is gone");
    const std::span<std::byte> buffer = BufferOf(layer);
    if (is_read) {
      std::ranges::copy(written_[layer], buffer.begin());
    } else {
      written_[layer] = std::vector(buffer.begin(), buffer.end());
      std::ranges::fill(buffer, kJunk);
    }
    return absl::OkStatus();
  }
  void Abandon() override {
    std::ranges::fill(under_way_, Transfer());
    for (std::vector<std::byte>& bytes : written_) bytes.clear();
  }

  int num_writes = 0;
  int broken_layer = -1;

 private:
  struct Transfer {
    int layer = -1;  // -1: none
    bool is_read = false;
  };
  std::span<std::byte> BufferOf(int layer) {
    return std::span(memory_).subspan(
        static_cast<size_t>(layer % num_buffers() * kStorageBufferBytes), kStorageBufferBytes);
  }
  Transfer& UnderWay(int layer) { return under_way_[static_cast<size_t>(layer % num_buffers())]; }

  mutable std::vector<std::byte> memory_;
  PinnedRegion pinned_;
  std::vector<Transfer> under_way_;  // by buffer
  std::array<std::vector<std::byte>, kNumActivations> written_;
};

class GpuActivationsTest : public DeviceTest {
 protected:
  // In a storage where there is one.
  void Make(int num_spilled, bool in_storage, int segment_layers = 1) {
    chain_ = {.num_layers = kNumLayers,
              .num_spilled_activations = num_spilled,
              .segment_layers = segment_layers};
    compute_ = MakeStream();
    auto made =
        GpuActivations::Create({.num_buffers = NumActivationBuffers(chain_),
                                .num_spilled = num_spilled,
                                .in_storage = in_storage,
                                .activation_bytes = kBytes},
                               device_.get(), compute_.get(), &device_budget_, &host_budget_);
    ASSERT_TRUE(made.ok()) << made.status();
    activations_ = *std::move(made);
    if (!in_storage) return;
    storage_ = std::make_unique<LateStorage>(device_.get(), std::min(3, num_spilled));
    activations_->SpillTo(storage_.get());
  }
  void TearDown() override {
    if (activations_ != nullptr) activations_->EndSpilling();
    storage_.reset();
    activations_.reset();
  }

  std::byte* BufferOf(int place) {
    return activations_->buffers().data() + place % activations_->num_buffers() * kBytes;
  }
  int num_kept() const { return static_cast<int>(kept_.size()); }
  int PlaceOf(int layer) const {
    return static_cast<int>(std::ranges::find(kept_, layer) - kept_.begin());
  }
  // The layer finds this in its input that was kept last.
  absl::Status ReadInput(int layer, std::vector<std::vector<std::byte>>& to) {
    FOREBAY_RETURN_IF_ERROR(activations_->Await(num_kept() - 1));
    return compute_->CopyToHost(to[static_cast<size_t>(layer - 1)], BufferOf(num_kept() - 1));
  }
  absl::Status Forward(int first, int layer, bool again) {
    FOREBAY_RETURN_IF_ERROR(activations_->Await(num_kept() - activations_->num_buffers()));
    if (again) FOREBAY_RETURN_IF_ERROR(ReadInput(layer, results_again_));
    return compute_->Fill(BufferOf(num_kept()), static_cast<std::byte>(first + layer), kBytes);
  }
  // A step in which the activation of layer l is `first` + l; it stops behind `num_operations`.
  absl::Status Step(int first, size_t num_operations = SIZE_MAX) {
    results_.assign(kNumActivations, std::vector<std::byte>(kBytes));
    results_again_ = results_;
    kept_.clear();
    bool is_behind_loss = false;
    for (const auto& [kind, layer] : ChainSchedule(chain_).operations) {
      if (num_operations-- == 0) return absl::OkStatus();
      is_behind_loss |= kind == OperationKind::kLossAndGradient;
      if (kind == OperationKind::kForward) {
        FOREBAY_RETURN_IF_ERROR(Forward(first, layer, is_behind_loss));
      } else if (kind == OperationKind::kKeep) {
        kept_.push_back(layer);
      } else if (kind == OperationKind::kDrop) {
        kept_.pop_back();
      } else if (kind == OperationKind::kSpill) {
        activations_->StartWrite(PlaceOf(layer));
      } else if (kind == OperationKind::kFetch) {
        activations_->StartRead(PlaceOf(layer));
      } else if (kind == OperationKind::kBackward && layer > 0) {
        FOREBAY_RETURN_IF_ERROR(ReadInput(layer, results_));
      }
    }
    return absl::OkStatus();
  }
  void ExpectResults(int first) {
    ASSERT_TRUE(compute_->Await().ok());
    for (int layer = 0; layer + 1 < kNumActivations; ++layer) {
      EXPECT_EQ(results_[static_cast<size_t>(layer)],
                std::vector(kBytes, static_cast<std::byte>(first + layer)))
          << layer;
      const std::vector<std::byte>& again = results_again_[static_cast<size_t>(layer)];
      EXPECT_TRUE(again == std::vector<std::byte>(kBytes) ||
                  again == results_[static_cast<size_t>(layer)])
          << layer;
    }
  }

  MemoryBudget device_budget_{0}, host_budget_{0};
  Chain chain_;
  // By layer, what the backward pass of the next one found, and its second forward pass.
  std::vector<std::vector<std::byte>> results_, results_again_;
  std::vector<int> kept_;  // layers
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<LateStorage> storage_;
  std::unique_ptr<GpuActivations> activations_;
};

TEST_P(GpuActivationsTest, ComeBackAsTheyWere) {
  for (const bool in_storage : {false, true}) {
    for (int num_spilled = 1; num_spilled <= MostSpilledActivations(chain_ = {kNumLayers});
         ++num_spilled) {
      SCOPED_TRACE(num_spilled);
      Make(num_spilled, in_storage);
      for (const int first : {1, 21, 41}) {
        ASSERT_TRUE(Step(first).ok());
        ExpectResults(first);
      }
      EXPECT_EQ(activations_->copied_bytes(), 3 * 2 * num_spilled * kBytes);
      if (in_storage) {
        EXPECT_EQ(storage_->num_writes, 3 * num_spilled);
      }
      TearDown();
    }
  }
}

TEST_P(GpuActivationsTest, InputsOfSegmentsComeBackBeforeTheirLayersGoForwardAgain) {
  int num_cases = 0;
  for (int segment_layers = 2; segment_layers <= kNumLayers - 2; ++segment_layers) {
    chain_ = {.num_layers = kNumLayers, .segment_layers = segment_layers};
    const int most_spilled = MostSpilledActivations(chain_);
    for (int num_spilled = 0; num_spilled <= most_spilled; ++num_spilled, ++num_cases) {
      SCOPED_TRACE(testing::Message() << segment_layers << " " << num_spilled);
      Make(num_spilled, /*in_storage=*/false, segment_layers);
      for (const int first : {1, 21}) {
        ASSERT_TRUE(Step(first).ok());
        ExpectResults(first);
      }
      EXPECT_EQ(activations_->copied_bytes(), 2 * 2 * num_spilled * kBytes);
      TearDown();
    }
  }
  EXPECT_GT(num_cases, 10);
}

TEST_P(GpuActivationsTest, AStepThatIsAbandonedAnywhereLeavesNothingBehind) {
  Make(MostSpilledActivations({kNumLayers}), /*in_storage=*/true);
  const size_t num_operations = ChainSchedule(chain_).operations.size();
  for (size_t end = 0; end < num_operations; end += 3) {
    ASSERT_TRUE(Step(1, end).ok());
    activations_->Abandon();
    ASSERT_TRUE(compute_->Await().ok());  // its results go
    ASSERT_TRUE(Step(31).ok());
    ExpectResults(31);
  }
}

TEST_P(GpuActivationsTest, AnErrorOfTheStorageIsThatOfAnAwait) {
  for (const int broken_layer : {0, 2, 5}) {
    Make(MostSpilledActivations({kNumLayers}), /*in_storage=*/true);
    storage_->broken_layer = broken_layer;
    EXPECT_THAT(MessageOf(Step(1)), HasSubstr("the disk is gone")) << broken_layer;
    activations_->Abandon();
    ASSERT_TRUE(compute_->Await().ok());
    TearDown();
  }
}

TEST_P(GpuActivationsTest, TakeNoMoreOfRamThanTheirStorageHas) {
  Make(4, /*in_storage=*/true);
  EXPECT_EQ(host_budget_.used_bytes(), 0);
  TearDown();
  Make(4, /*in_storage=*/false);
  EXPECT_EQ(host_budget_.used_bytes(), HostBuffer::ChargedBytes(4 * kBytes));
}

INSTANTIATE_TEST_SUITE_P(Devices, GpuActivationsTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
