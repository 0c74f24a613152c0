// Whole layers out of two ranks' parts: in any order that is announced, after one is cancelled, and
// when a rank has gone.
#include "forebay/offload/ranks/gathered_weights.h"

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/collective/threads/thread_transport.h"
#include "forebay/offload/create_store.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int kNumGathered = 5;

Inventory InventoryToGather() {
  Inventory inventory;
  for (int layer = 0; layer < kNumGathered; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    inventory.BeginLayer(name);
    inventory.Add(name, {1, kLayerAlignElems * (1 + layer % 3)}, 0, true);
  }
  return inventory;
}

float ValueOf(int layer, int64_t elem) {
  return 10'000.0f * static_cast<float>(layer) + static_cast<float>(elem);
}

// One of two ranks, with its part of the layers in a store of its own.
struct GatheringRank {
  GatheringRank(const std::string& directory, GatheredFor length, Communicator* communicator)
      : ranks(communicator) {
    const int rank = ranks->rank();
    const TensorFiller fill = [&](const TensorSpec& tensor, int64_t first_elem,
                                  std::span<float> values) {
      int64_t elem = parts.Offsets(tensor.layer)[rank] + first_elem;
      for (float& value : values) value = ValueOf(tensor.layer, elem++);
      return absl::OkStatus();
    };
    auto filled = CreateFilledStore({.directories = {directory}, .layout = Layout::kFp32},
                                    parts.Of(rank), fill, {}, engine.get(), &budget);
    EXPECT_TRUE(filled.ok()) << filled.status();
    store = *std::move(filled);
    placement.weights.assign(kNumGathered, Tier::kNvme);
    auto window = Swapper::Create({.last_block_layer = kNumGathered - 1}, placement, store.get(),
                                  nullptr, &budget);
    EXPECT_TRUE(window.ok()) << window.status();
    swapper = *std::move(window);
    auto of_all =
        GatheredWeights::Create(&parts, DType::kF32, {length}, ranks, swapper.get(), &budget);
    EXPECT_TRUE(of_all.ok()) << of_all.status();
    gathered = *std::move(of_all);
  }

  // Acquires them in this order, checks and releases them.
  void Use(const std::vector<int>& layers) const {
    for (const int layer : layers) {
      const auto bytes = gathered->Acquire(layer);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      const auto* const values = reinterpret_cast<const float*>(bytes->data());
      const int64_t num_elems = parts.whole().layers()[layer].num_elems;
      ASSERT_EQ(static_cast<int64_t>(bytes->size()), num_elems * 4);
      for (int64_t elem = 0; elem < num_elems; ++elem) {
        ASSERT_EQ(values[elem], ValueOf(layer, elem)) << "layer " << layer << ", " << elem;
      }
      gathered->Release(layer);
    }
  }
  void ExpectAndUse(const std::vector<int>& layers) const {
    gathered->Expect(layers);
    Use(layers);
  }
  void Cancel() const {
    gathered->CancelExpected();
    swapper->CancelExpected();
  }

  Communicator* const ranks;
  const InventoryParts parts{InventoryToGather(), 2};
  MemoryBudget budget{0};
  std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  std::unique_ptr<TensorStore> store;
  Placement placement;
  std::unique_ptr<Swapper> swapper;
  std::unique_ptr<GatheredWeights> gathered;
};

void OnTwoRanks(GatheredFor length, const std::function<void(GatheringRank&)>& body) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Transport>> transports = CreateThreadRanks({.num_ranks = 2});
  std::vector<std::thread> threads;
  for (int number = 0; number < 2; ++number) {
    threads.emplace_back([&, number] {
      auto ranks = Communicator::Create(std::move(transports[number]), nullptr, {.timeout_s = 60});
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      GatheringRank rank(folder.Path(std::to_string(number)), length, ranks->get());
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GatheredWeights, GoOnAfterACancelWithAGatherUnderWay) {
  for (const GatheredFor length : {GatheredFor::kUse, GatheredFor::kStep}) {
    OnTwoRanks(length, [](GatheringRank& rank) {
      rank.gathered->Expect(std::vector<int>{0, 1, 2, 3});
      rank.Use({0});  // layer 1 is on its way
      rank.Cancel();
      rank.ExpectAndUse({4, 1, 0, 2, 1});
      EXPECT_EQ(rank.ranks->Barrier(), absl::OkStatus());
    });
  }
}

// As the experts of a module do: a step gathers all layers once, whoever uses which.
TEST(GatheredWeights, OfAStepMayBeUsedByOneRankAlone) {
  OnTwoRanks(GatheredFor::kStep, [](GatheringRank& rank) {
    rank.ExpectAndUse(rank.ranks->rank() == 0 ? std::vector<int>{0, 3, 1}
                                              : std::vector<int>{0, 1, 4, 4});
    rank.gathered->Settle();
    EXPECT_EQ(rank.ranks->Barrier(), absl::OkStatus());
    rank.ExpectAndUse({4, 2, 3});
    EXPECT_EQ(rank.ranks->traffic().num_calls, kNumGathered + 1);
    // The same behind a pass that did not come so far, and whose rest was taken back.
    rank.gathered->Forget();
    rank.gathered->Expect(std::vector<int>{0, 1, 2});
    rank.Use(rank.ranks->rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1});
    rank.Cancel();
    rank.gathered->Forget();
    EXPECT_EQ(rank.ranks->Barrier(), absl::OkStatus());
    rank.ExpectAndUse({1});
  });
}

// Both ranks refuse, and go on in the order that was announced.
TEST(GatheredWeights, RefuseAnOrderThatWasNotAnnounced) {
  OnTwoRanks(GatheredFor::kUse, [](GatheringRank& rank) {
    const std::vector<int> order = {0, 1, 2, 3};
    rank.gathered->Expect(order);
    const absl::Status refused = rank.gathered->Acquire(1).status();
    EXPECT_EQ(ExitCodeOf(refused), ExitCode::kUsage) << refused;
    EXPECT_THAT(MessageOf(refused), HasSubstr("layer 1 is not the next"));
    for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(rank.gathered->Acquire(layer).ok());
    const absl::Status full = rank.gathered->Acquire(3).status();
    EXPECT_THAT(MessageOf(full), HasSubstr("'layers.3' would be one layer too many"));
    for (int layer = 0; layer < 3; ++layer) rank.gathered->Release(layer);
    rank.Use({3});
    EXPECT_EQ(rank.ranks->Barrier(), absl::OkStatus());
  });
}

TEST(GatheredWeights, AreKeptForAStepUntilTheyAreForgotten) {
  OnTwoRanks(GatheredFor::kStep, [](GatheringRank& rank) {
    rank.ExpectAndUse({0, 1, 2, 3, 4});
    const int64_t once = rank.ranks->traffic().sent_bytes;
    rank.ExpectAndUse({4, 3, 2, 1, 0});
    EXPECT_EQ(rank.ranks->traffic().sent_bytes, once);
    rank.gathered->Forget();
    rank.ExpectAndUse({0, 1, 2, 3, 4});
    EXPECT_GT(rank.ranks->traffic().sent_bytes, once);
    EXPECT_EQ(rank.ranks->Barrier(), absl::OkStatus());
  });
}

// The other rank goes before it gives its part of layer 1: half of a layer is nobody's weights.
TEST(GatheredWeights, AreNotHalfOfALayerAfterAnError) {
  for (const GatheredFor length : {GatheredFor::kUse, GatheredFor::kStep}) {
    std::latch has_layer_0(1);
    OnTwoRanks(length, [&](GatheringRank& rank) {
      if (rank.ranks->rank() == 1) {
        rank.ExpectAndUse({0});
        has_layer_0.wait();
        return rank.ranks->Abort(StorageError("its disk is gone"));
      }
      rank.gathered->Expect(std::vector<int>{0, 1});
      rank.Use({0});
      has_layer_0.count_down();
      rank.Cancel();
      rank.gathered->Expect(std::vector<int>{1});
      EXPECT_THAT(MessageOf(rank.gathered->Acquire(1).status()), HasSubstr("its disk is gone"));
    });
  }
}

}  // namespace
}  // namespace forebay
