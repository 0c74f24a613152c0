#include "forebay/swap/window/step_transfers.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/step/layer_window.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

// Layers of so many elements (rounded up to a whole number of blocks), one tensor each.
Inventory InventoryOf(const std::vector<int64_t>& layer_elems) {
  Inventory inventory;
  for (size_t i = 0; i < layer_elems.size(); ++i) {
    const std::string name = "layer" + std::to_string(i);
    inventory.BeginLayer(name);
    inventory.Add(name, {layer_elems[i]}, 0, true);
  }
  return inventory;
}

// A large first layer, `num_blocks` small ones, and a last one.
Inventory ChainModel(int num_blocks, int64_t last_elems) {
  std::vector<int64_t> elems(static_cast<size_t>(num_blocks) + 2, 4000);
  elems.front() = 20'000;
  elems.back() = last_elems;
  return InventoryOf(elems);
}

StepSchedule ScheduleOf(int num_layers, bool tied) {
  return ChainSchedule({.num_layers = num_layers, .loss_reads_first = tied});
}

StepSchedule ScheduleOf(const Placement& placement) {
  return ChainSchedule({.num_layers = static_cast<int>(placement.weights.size()),
                        .update_times = placement.update_times});
}

Placement AllOnNvme(const TileMap& tiles) {
  Placement placement;
  placement.weights.assign(static_cast<size_t>(tiles.num_layers()), Tier::kNvme);
  placement.gradients.assign(static_cast<size_t>(tiles.num_layers()), Tier::kHost);
  placement.state.assign(static_cast<size_t>(tiles.num_tiles()), Tier::kNvme);
  return placement;
}

std::vector<int> WeightReads(const Inventory& inventory, bool tied, int num_block_buffers) {
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  return CountWeightReads(ScheduleOf(inventory.num_layers(), tied),
                          ChainWindow(inventory.num_layers(), {4, num_block_buffers}),
                          AllOnNvme(tiles), tiles);
}

TEST(StepBufferChoices, GoFromTilesForEveryDiskToTheLeastThatWorks) {
  const auto numbers = [](int num_stripes) {
    std::vector<std::pair<int, int>> pairs;
    for (const StepBuffers& buffers : StepBufferChoices(num_stripes)) {
      pairs.emplace_back(buffers.num_staging_tiles, buffers.num_block_buffers);
    }
    return pairs;
  };
  using Pair = std::pair<int, int>;
  EXPECT_THAT(numbers(1), ElementsAre(Pair(4, 3), Pair(2, 3), Pair(2, 2)));
  EXPECT_THAT(numbers(2), ElementsAre(Pair(8, 3), Pair(4, 3), Pair(2, 3), Pair(2, 2)));
  for (int num_stripes = 1; num_stripes <= kMaxStripes; ++num_stripes) {
    const std::vector<std::pair<int, int>> pairs = numbers(num_stripes);
    EXPECT_EQ(pairs.front().first, std::min(4 * num_stripes, 32));
    EXPECT_EQ(pairs.back(), Pair(2, 2));
    for (size_t i = 1; i < pairs.size(); ++i) {
      EXPECT_LE(pairs[i].first, pairs[i - 1].first);
      EXPECT_LE(pairs[i].second, pairs[i - 1].second);
      EXPECT_NE(pairs[i], pairs[i - 1]);
    }
  }
}

TEST(ChainWindow, TakesTheLayersBetweenTheFirstAndTheLastForBlocks) {
  const WindowOptions window = ChainWindow(6, {.num_staging_tiles = 2, .num_block_buffers = 4});
  EXPECT_EQ(window.num_block_buffers, 4);
  EXPECT_EQ(window.num_large_buffers, 1);
  EXPECT_EQ(window.first_block_layer, 1);
  EXPECT_EQ(window.last_block_layer, 4);
}

TEST(CountWeightReads, AnUntiedModelReadsItsEndsOnceAndItsBlocksTwiceLessWhatTheWindowHolds) {
  // Both ends share the large buffer. At either turn three blocks are still in the window.
  EXPECT_THAT(WeightReads(ChainModel(8, 20'000), false, 3),
              ElementsAre(1, 1, 1, 1, 2, 2, 1, 1, 1, 1));
  EXPECT_THAT(WeightReads(ChainModel(8, 20'000), false, 2),
              ElementsAre(1, 1, 1, 2, 2, 2, 2, 1, 1, 1));
}

TEST(CountWeightReads, ATiedEmbeddingIsNeverReadAgain) {
  // The last layer is small and takes a block's buffer at the turn.
  EXPECT_THAT(WeightReads(ChainModel(6, 100), true, 3), ElementsAre(0, 1, 1, 1, 2, 1, 1, 1));
}

TEST(CountWeightReads, AWindowForAllBlocksReadsNothing) {
  EXPECT_THAT(WeightReads(ChainModel(2, 100), true, 3), ElementsAre(0, 0, 0, 0));
}

TEST(CountWeightReads, LayersInRamAreNotRead) {
  const Inventory inventory = ChainModel(6, 20'000);
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  Placement placement = AllOnNvme(tiles);
  placement.weights.assign(8, Tier::kHost);
  placement.weights[4] = Tier::kNvme;
  EXPECT_THAT(CountWeightReads(ScheduleOf(placement), ChainWindow(8, {}), placement, tiles),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  placement.weights[0] = placement.weights[7] = Tier::kNvme;
  EXPECT_THAT(CountWeightReads(ScheduleOf(placement), ChainWindow(8, {}), placement, tiles),
              ElementsAre(1, 0, 0, 0, 0, 0, 0, 1));
}

// They find an empty window, and updates do not find their weights in it.
TEST(CountTransfers, StepsBesideDelayedUpdatesReadMoreWeights) {
  const Inventory inventory = ChainModel(6, 20'000);
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  Placement placement = AllOnNvme(tiles);
  const auto count = [&] {
    return CountTransfers(ScheduleOf(placement), ChainWindow(8, {}), placement, tiles, 2);
  };
  const StepTransfers in_time = count();
  placement.update_times.assign(8, UpdateTime::kAfterNextHand);
  EXPECT_THAT(CountWeightReads(ScheduleOf(placement), ChainWindow(8, {}), placement, tiles),
              ElementsAre(1, 2, 2, 2, 1, 1, 1, 1));
  // Three blocks of 4096 elements that the window would still hold from the step before.
  EXPECT_EQ(count().read_bytes, in_time.read_bytes + 2 * (inventory.num_padded_elems() + 3 * 4096));
  EXPECT_EQ(count().write_bytes, in_time.write_bytes);
}

// Their weights are still lent when they are updated outside of the window, on a copy of their own.
TEST(CountTransfers, EndsInPartsReadATiedFirstLayerOnceMoreWhateverTheUpdates) {
  const Inventory inventory = ChainModel(6, 20'000);
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  for (const UpdateTime time : {UpdateTime::kOnRead, UpdateTime::kAfterHand}) {
    Placement placement = AllOnNvme(tiles);
    placement.update_times.assign(8, time);
    const auto count = [&](bool tied, bool in_parts) {
      const StepSchedule schedule = ChainSchedule({.num_layers = 8,
                                                   .loss_reads_first = tied,
                                                   .update_times = placement.update_times,
                                                   .ends_in_parts = in_parts});
      // With a buffer for each large layer, so that the first is still there for the loss.
      WindowOptions window = ChainWindow(8, {});
      window.num_large_buffers = 2;
      return CountTransfers(schedule, window, placement, tiles, 2);
    };
    for (const bool tied : {false, true}) {
      EXPECT_EQ(count(tied, true).read_bytes, count(tied, false).read_bytes) << tied;
      EXPECT_EQ(count(tied, true).write_bytes, count(tied, false).write_bytes) << tied;
    }
  }
}

TEST(CountTransfers, AStepReadsAndWritesAllStateAndCountsItsCommit) {
  const Inventory inventory = ChainModel(6, 20'000);
  const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
  const StepTransfers transfers =
      CountTransfers(ScheduleOf(AllOnNvme(tiles)), ChainWindow(8, {}), AllOnNvme(tiles), tiles, 2);
  const int64_t elems = inventory.num_padded_elems();
  // Two large layers of 20480 elements, and six blocks of 4096 that are found at one turn each.
  EXPECT_EQ(transfers.read_bytes, 10 * elems + 2 * (2 * 20480 + 6 * 4096));
  EXPECT_EQ(transfers.write_bytes,
            12 * elems + TensorStore::SealBytes(tiles, kMostSlots) + 2 * kCommitRecordBytes);
}

TEST(CountTransfers, SpilledGradientsAreWrittenAndReadOnce) {
  const Inventory inventory = ChainModel(6, 20'000);
  const TileMap tiles(inventory, Layout::kFp32, kSmallTileElems);
  const Placement held = AllOnNvme(tiles);
  Placement spilled = held;
  spilled.gradients[3] = Tier::kNvme;
  const auto count = [&](const Placement& placement) {
    return CountTransfers(ScheduleOf(placement), ChainWindow(8, {}), placement, tiles, 4);
  };
  EXPECT_EQ(count(spilled).read_bytes, count(held).read_bytes + 4 * 4096);
  EXPECT_EQ(count(spilled).write_bytes, count(held).write_bytes + 4 * 4096);
}

// The window of the swapper itself, over models, windows and disk speeds of all kinds.
TEST(CountWeightReads, IsWhatTheSwapperReads) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const CounterRng random(seed);
    const int num_blocks = 1 + static_cast<int>(random.Below(0, 7));
    const bool tied = random.Below(1, 2) == 0;
    std::vector<int64_t> elems(static_cast<size_t>(num_blocks) + 2, 2048);
    elems.front() = random.Below(2, 2) == 0 ? 2048 : 6144;
    // Tied: the two layers of the loss must not want the same large buffer.
    elems.back() = tied || random.Below(3, 2) == 0 ? 2048 : 6144;
    const Inventory inventory = InventoryOf(elems);
    const TemporaryFolder folder;
    const auto engine =
        CreateThreadsEngine({.num_threads = 1 + static_cast<int>(random.Below(20, 3))});
    auto store =
        TensorStore::Create({.directories = {folder.Path("store")}}, inventory, engine.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(WriteStep(**store, 0).ok());
    const StepSchedule schedule = ScheduleOf(inventory.num_layers(), tied);
    const WindowOptions window =
        ChainWindow(inventory.num_layers(), {4, 2 + static_cast<int>(random.Below(21, 4))});
    Placement placement = AllOnNvme((*store)->tiles());
    for (size_t i = 0; i < placement.weights.size(); ++i) {
      if (random.Below(30 + i, 4) == 0) placement.weights[i] = Tier::kHost;
    }
    MemoryBudget budget(0);
    auto swapper = Swapper::Create(window, placement, store->get(), nullptr, &budget);
    ASSERT_TRUE(swapper.ok()) << swapper.status();

    int64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      before = (*swapper)->stats().weight_reads;
      (*swapper)->Expect(schedule.Reads());
      for (const auto& [kind, layer] : schedule.operations) {
        if (kind == OperationKind::kRead) {
          ASSERT_TRUE((*swapper)->Acquire(layer).ok());
        }
        if (kind == OperationKind::kRelease) (*swapper)->Release(layer);
      }
    }
    int64_t counted = 0;
    for (const int reads : CountWeightReads(schedule, window, placement, (*store)->tiles())) {
      counted += reads;
    }
    EXPECT_EQ((*swapper)->stats().weight_reads - before, counted);
  }
}

// Counts the reads of each layer, and takes its time for some.
class SlowFiller : public LayerFiller {
 public:
  SlowFiller(int num_layers, uint64_t seed) : reads(num_layers), random_(seed) {}
  void StartRead(int /*buffer*/, int layer, bool /*urgent*/) override { ++reads[layer]; }
  absl::Status FinishRead(int /*buffer*/, int /*layer*/, bool /*is_used*/) override {
    if (random_.Below(num_calls_++, 8) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return absl::OkStatus();
  }
  std::vector<int> reads;

 private:
  const CounterRng random_;
  uint64_t num_calls_ = 0;
};

// Layers in any order, some of them held while others come and go: as many as leave a buffer of
// each class.
StepSchedule RandomSchedule(const CounterRng& random, const WindowBuffers& buffers,
                            int num_free_blocks, int num_accesses) {
  StepSchedule schedule;
  std::vector<int> held;
  const auto release = [&](size_t i) {
    schedule.operations.push_back({OperationKind::kRelease, held[i]});
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int i = 0; i < num_accesses; ++i) {
    const int layer = static_cast<int>(random.Below(100 + 2 * i, buffers.num_layers()));
    schedule.operations.push_back({OperationKind::kRead, layer});
    held.push_back(layer);
    // The one large buffer is given back at once.
    if (buffers.ClassOf(layer) == BufferClass::kLarge) release(held.size() - 1);
    while (static_cast<int>(held.size()) > num_free_blocks ||
           (!held.empty() && random.Below(101 + 2 * i, 3) == 0)) {
      release(random.Below(5000 + i, held.size()));
    }
  }
  while (!held.empty()) release(0);
  return schedule;
}

TEST(CountWeightReads, IsWhatTheWindowReadsOfEachLayerInAnyOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const CounterRng random(seed);
    const int num_layers = 4 + static_cast<int>(random.Below(0, 7));
    const Inventory inventory = ChainModel(num_layers - 2, random.Below(1, 2) == 0 ? 100 : 20'000);
    const TileMap tiles(inventory, Layout::kBf16, kSmallTileElems);
    Placement placement = AllOnNvme(tiles);
    for (size_t i = 0; i < placement.weights.size(); ++i) {
      if (random.Below(30 + i, 5) == 0) placement.weights[i] = Tier::kHost;
    }
    placement.update_times.assign(placement.weights.size(), UpdateTime::kOnRead);
    for (size_t i = 0; i < placement.weights.size(); ++i) {
      const bool speculative = placement.weights[i] == Tier::kNvme && random.Below(60 + i, 4) == 0;
      if (speculative) placement.update_times[i] = UpdateTime::kAfterHand;
    }
    const WindowOptions window =
        ChainWindow(num_layers, {4, 2 + static_cast<int>(random.Below(2, 3))});
    const WindowBuffers buffers = WindowBuffersOf(window, placement, tiles);
    const StepSchedule schedule =
        RandomSchedule(random, buffers, window.num_block_buffers - 1, /*num_accesses=*/30);

    SlowFiller filler(num_layers, seed);
    auto layers = LayerWindow::Create(buffers, inventory, &filler);
    ASSERT_TRUE(layers.ok()) << layers.status();
    for (int step = 0; step < 3; ++step) {
      filler.reads.assign(filler.reads.size(), 0);
      (*layers)->Expect(schedule.Reads());
      for (const auto& [kind, layer] : schedule.operations) {
        if (kind == OperationKind::kRead) {
          ASSERT_TRUE((*layers)->Acquire(layer).ok());
        } else {
          (*layers)->Release(layer);
        }
      }
      (*layers)->Forget([&](int layer) { return !placement.WaitsForNorm(layer); });
    }
    EXPECT_EQ(filler.reads, CountWeightReads(schedule, window, placement, tiles));
  }
}

}  // namespace
}  // namespace forebay
