// A layer's gradient in its sum over ranks: from a GPU, and through a bucket that is smaller.
#include "forebay/offload/ranks/gradient_sum.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/collective/communicator.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/tests/collective/rank_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::Each;

Inventory OneLayer(int64_t num_elems) {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("weight", {num_elems}, 0, true);
  return inventory;
}

// A GPU, one that is emulated, or the host's twin. The emulated one may do its work as late as may
// be, so that what nothing orders comes in the wrong order.
class GradientsOfADevice : public testing::Test {
 protected:
  GradientsOfADevice() {
    auto sum = GradientSum::Create(&inventory_, /*parts=*/nullptr, alone_.get(), &budget_,
                                   {.bucket_bytes = 1, .device = device_.get()});
    EXPECT_TRUE(sum.ok()) << sum.status();
    sum_ = *std::move(sum);
    memory_ = *device_->Allocate(num_elems() * int64_t{sizeof(float)});
    compute_ = *device_->CreateStream();
    ready_ = *device_->CreateEvent();
    taken_ = *device_->CreateEvent();
  }
  int64_t num_elems() const { return inventory_.layers()[0].num_elems; }
  // All its values, in the order of the stream that computes.
  void Fill(std::byte value) {
    ASSERT_TRUE(compute_->Fill(memory_.address(), value, memory_.size_bytes()).ok());
  }
  LayerGradient Gradient() {
    return {.layer = 0,
            .bytes = std::as_bytes(std::span<const float>(memory_.As<float>(), num_elems())),
            .device = device_->kind(),
            .ready = ready_.get(),
            .taken = taken_.get()};
  }
  // Returns the number of pieces.
  int ExpectPieces(int64_t& num_seen, std::byte value, bool while_needed) {
    int num_pieces = 0;
    for (; while_needed ? sum_->NeedsGradient() : sum_->IsUnderWay(); ++num_pieces) {
      const auto piece = sum_->Await();
      EXPECT_TRUE(piece.ok()) << piece.status();
      if (!piece.ok()) return num_pieces;
      EXPECT_EQ(piece->layer, 0);
      EXPECT_EQ(piece->first_elem, num_seen);
      EXPECT_THAT(piece->bytes, Each(value));
      num_seen += piece->num_elems();
    }
    return num_pieces;
  }

  // Of one block in each slot; the layer has ten blocks.
  const Inventory inventory_ = OneLayer(10 * kLayerAlignElems);
  const std::unique_ptr<Device> device_ = ChooseDevice().device;
  const std::unique_ptr<Communicator> alone_ = Communicator::CreateAlone();
  MemoryBudget budget_{int64_t{1} << 20};
  std::unique_ptr<GradientSum> sum_;
  DeviceBuffer memory_;
  std::unique_ptr<Event> ready_, taken_;
  std::unique_ptr<Stream> compute_;
};

TEST_F(GradientsOfADevice, ComeAsTheyWereWhenTheyWereComplete) {
  for (const auto value : {std::byte{0x3f}, std::byte{0x41}}) {
    Fill(value);
    ASSERT_TRUE(compute_->Record(*ready_).ok());
    ASSERT_TRUE(sum_->Start(Gradient()).ok());
    int64_t num_seen = 0;
    EXPECT_EQ(ExpectPieces(num_seen, value, /*while_needed=*/true), 7);
    // The next layer's, which are made in the same place once these are taken.
    ASSERT_TRUE(compute_->WaitFor(*taken_).ok());
    Fill(std::byte{0});
    ASSERT_TRUE(compute_->Await().ok());
    EXPECT_EQ(ExpectPieces(num_seen, value, /*while_needed=*/false), 3);
    EXPECT_EQ(num_seen, num_elems());
  }
}

float ValueOf(int rank, int64_t elem) {
  return static_cast<float>(elem % 1000) * (rank == 1 ? 1e-6f : 1.0f) + static_cast<float>(rank);
}

// The sum of a layer over ranks, by parts of them or whole, through a bucket of that size.
struct SumOfRanks {
  std::vector<std::vector<float>> of_rank;
  std::vector<CollectiveTraffic> traffic;
  int64_t charged_bytes = 0;
};

SumOfRanks SumThrough(int64_t bucket_bytes, const Inventory& inventory, bool in_parts,
                      int num_ranks) {
  const InventoryParts parts(inventory, num_ranks);
  SumOfRanks sums{std::vector<std::vector<float>>(static_cast<size_t>(num_ranks)),
                  std::vector<CollectiveTraffic>(static_cast<size_t>(num_ranks))};
  RunOnRanks({.num_ranks = num_ranks}, [&](Communicator& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    MemoryBudget budget{int64_t{1} << 30};
    const auto sum = GradientSum::Create(&inventory, in_parts ? &parts : nullptr, &ranks, &budget,
                                         {.bucket_bytes = bucket_bytes});
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(budget.used_bytes(), GradientSum::ChargedBytes(inventory, num_ranks, bucket_bytes));
    std::vector<float> gradient(static_cast<size_t>(inventory.layers()[0].num_elems));
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = ValueOf(ranks.rank(), static_cast<int64_t>(i));
    }
    ASSERT_TRUE((*sum)->Start(Fp32Gradient(0, gradient)).ok());
    while ((*sum)->IsUnderWay()) {
      if (!(*sum)->NeedsGradient()) std::ranges::fill(gradient, -1.0f);
      const auto piece = (*sum)->Await();
      ASSERT_TRUE(piece.ok()) << piece.status();
      EXPECT_EQ(piece->first_elem, std::ssize(sums.of_rank[rank]));
      const std::span<const float> elems = piece->floats();
      sums.of_rank[rank].insert(sums.of_rank[rank].end(), elems.begin(), elems.end());
    }
    sums.traffic[rank] = ranks.traffic();
  });
  return sums;
}

// A bucket as small as may be, one of 1 MiB, and one for the whole layer; parts that differ.
TEST(GradientSum, HasTheSameBitsAndTrafficThroughABucketOfAnySize) {
  const Inventory inventory = OneLayer(151 * kLayerAlignElems);
  for (const int num_ranks : {2, 3}) {
    for (const bool in_parts : {false, true}) {
      SCOPED_TRACE(testing::Message() << num_ranks << " ranks, in parts: " << in_parts);
      const SumOfRanks whole = SumThrough(0, inventory, in_parts, num_ranks);
      for (const auto rank : {size_t{0}, static_cast<size_t>(num_ranks) - 1}) {
        const int64_t first = in_parts ? InventoryParts(inventory, num_ranks).Offsets(0)[rank] : 0;
        for (size_t i = 0; i < whole.of_rank[rank].size(); i += 97) {
          float expected = 0;
          for (int r = 0; r < num_ranks; ++r) {
            expected += ValueOf(r, first + static_cast<int64_t>(i));
          }
          ASSERT_EQ(whole.of_rank[rank][i], expected) << i;
        }
      }
      for (const int64_t bucket_bytes : {int64_t{1}, int64_t{1} << 20}) {
        const SumOfRanks pieces = SumThrough(bucket_bytes, inventory, in_parts, num_ranks);
        EXPECT_EQ(pieces.of_rank, whole.of_rank);
        for (size_t rank = 0; rank < whole.traffic.size(); ++rank) {
          EXPECT_EQ(pieces.traffic[rank].sent_bytes, whole.traffic[rank].sent_bytes);
          EXPECT_EQ(pieces.traffic[rank].received_bytes, whole.traffic[rank].received_bytes);
        }
      }
    }
  }
}

TEST(GradientSum, TakesNoMoreMemoryForALargerLayer) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto charged = [](int64_t num_elems, int64_t bucket_bytes) {
    return GradientSum::ChargedBytes(OneLayer(num_elems), /*num_ranks=*/4, bucket_bytes);
  };
  EXPECT_EQ(charged(kMiB, 0), 4 * kMiB);  // all of it
  EXPECT_EQ(charged(10 * kMiB, 8 * kMiB), 8 * kMiB);
  EXPECT_EQ(charged(1000 * kMiB, 8 * kMiB), 8 * kMiB);
  EXPECT_EQ(charged(4000 * kMiB, 0), kAutoBucketBytes);
}

}  // namespace
}  // namespace forebay
