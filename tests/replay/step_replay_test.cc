#include "forebay/replay/step_replay.h"

#include <atomic>
#include <memory>
#include <string>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/aio/folding_engine.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

bool Never() {
  return false;
}

// A large embedding, seven blocks of two tiles with padding, and a small last layer.
Inventory ModelInventory() {
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {20'000}, 0, true);
  for (int block = 0; block < 7; ++block) {
    const std::string name = "layers." + std::to_string(block);
    inventory.BeginLayer(name);
    inventory.Add(name + ".norm", {37}, 0, false);
    inventory.Add(name + ".up", {5900}, 0, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("norm", {100}, 0, false);
  return inventory;
}

ReplayOptions SmallTiles(Layout layout, Tier gradients) {
  return {.layout = layout,
          .tile_elems = kSmallTileElems,
          .gradient_dtype = WeightDType(layout),
          .gradients = gradients,
          .loss_reads_first = true};
}

StoreOptions StoreOf(const ReplayPlan& plan, const std::string& directory) {
  return {.directories = {directory},
          .layout = plan.options.layout,
          .tile_elems = plan.options.tile_elems,
          .gradient_area_bytes = plan.gradient_area_bytes};
}

struct Variant {
  std::string name;
  Layout layout;
  Tier gradients;
  ReplayCompute compute;
};

class StepReplayTest : public testing::TestWithParam<Variant> {
 protected:
  const TemporaryFolder folder_;
  const ReplayPlan plan_ =
      PlanReplay(ModelInventory(), SmallTiles(GetParam().layout, GetParam().gradients));
  MemoryBudget budget_{0};
};

TEST_P(StepReplayTest, EveryStepMovesWhatThePlanSaysInTheMemoryThatItSays) {
  const auto engine = CreateThreadsEngine({.num_threads = 2});
  auto store =
      TensorStore::Create(StoreOf(plan_, folder_.Path("store")), plan_.inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE(WriteStep(**store, 0).ok());
  auto replay = StepReplay::Create(plan_, GetParam().compute, 2, store->get(), &budget_);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_LE(budget_.used_bytes(), plan_.host_bytes);
  ASSERT_EQ((*replay)->Start(Never), absl::OkStatus());
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE(step);
    const auto replayed = (*replay)->RunStep(Never);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->transfers.read_bytes, plan_.transfers.read_bytes);
    EXPECT_EQ(replayed->transfers.write_bytes, plan_.transfers.write_bytes);
    EXPECT_EQ((*store)->committed().step, step);
  }
}

TEST_P(StepReplayTest, ALargeStoreIsReplayedInASmallFile) {
  const auto inner = CreateSimulatedEngine({}, {}, nullptr);
  const int64_t common_bytes = 4 * plan_.largest_op_bytes;
  auto common = OpenDirectFile(folder_.Path("common"),
                               {.create = true, .size_bytes = common_bytes, .direct = false});
  ASSERT_TRUE(common.ok()) << common.status();
  const int number = inner->AddFile(std::move(common->fd), folder_.Path("common"));
  FoldingEngine engine(inner.get(), {{.file = number,
                                      .size_bytes = common_bytes,
                                      .least_bytes = 64 << 10,
                                      .unfolded_name = kSealsName,
                                      .together_bytes = plan_.store_bytes}});
  StoreOptions options = StoreOf(plan_, folder_.Path("store"));
  options.unfilled = true;
  auto store = TensorStore::Create(options, plan_.inventory, &engine);
  ASSERT_TRUE(store.ok()) << store.status();
  auto replay = StepReplay::Create(plan_, GetParam().compute, 1, store->get(), &budget_);
  ASSERT_TRUE(replay.ok()) << replay.status();
  ASSERT_EQ((*replay)->Start(Never), absl::OkStatus());
  for (int step = 1; step <= 2; ++step) {
    const auto replayed = (*replay)->RunStep(Never);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->transfers.read_bytes, plan_.transfers.read_bytes);
    EXPECT_EQ(replayed->transfers.write_bytes, plan_.transfers.write_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, StepReplayTest,
    testing::ValuesIn(std::vector<Variant>{
        {"Bf16", Layout::kBf16, Tier::kHost, ReplayCompute::kNone},
        {"Bf16Spilled", Layout::kBf16, Tier::kNvme, ReplayCompute::kNone},
        {"Bf16WithTheUpdate", Layout::kBf16, Tier::kHost, ReplayCompute::kAdamW},
        {"Fp32SpilledWithTheUpdate", Layout::kFp32, Tier::kNvme, ReplayCompute::kAdamW}}),
    [](const testing::TestParamInfo<Variant>& variant) { return variant.param.name; });

// A store that holds the pattern of step 0, and two replayed steps on it.
class StepReplayContents : public testing::Test {
 protected:
  bool HoldsThePatternAfterTwoSteps(ReplayCompute compute) {
    auto store =
        TensorStore::Create(StoreOf(plan_, folder_.Path("store")), plan_.inventory, engine_.get());
    EXPECT_TRUE(store.ok() && WriteStep(**store, 0).ok());
    auto replay = StepReplay::Create(plan_, compute, 1, store->get(), &budget_);
    EXPECT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
    for (int step = 0; step < 2; ++step) EXPECT_TRUE((*replay)->RunStep(Never).ok());
    return HoldsStep(**store, 0);
  }

  const TemporaryFolder folder_;
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({});
  const ReplayPlan plan_ = PlanReplay(ModelInventory(), SmallTiles(Layout::kBf16, Tier::kHost));
  MemoryBudget budget_{0};
};

TEST_F(StepReplayContents, WithoutArithmeticEveryByteComesBackAsItWas) {
  EXPECT_TRUE(HoldsThePatternAfterTwoSteps(ReplayCompute::kNone));
}

// Two disks that are simulated, one twice as fast as the other: every byte comes back, and each
// disk has its share of the work.
TEST_F(StepReplayContents, OnTwoDisksEveryByteComesBackAsItWas) {
  const std::vector<std::string> folders = {folder_.Path("fast"), folder_.Path("slow")};
  class CountingDisks : public LimitedDiskCalls {
   public:
    using LimitedDiskCalls::LimitedDiskCalls;
    int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                     int64_t offset_bytes) override {
      const bool fast = path.find("/fast/") != std::string_view::npos;
      (fast ? fast_bytes : slow_bytes) += static_cast<int64_t>(buffer.size());
      return LimitedDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
    }
    std::atomic<int64_t> fast_bytes = 0;
    std::atomic<int64_t> slow_bytes = 0;
  };
  CountingDisks disks({{folders[0], 2e9}, {folders[1], 1e9}});
  const auto engine = CreateThreadsEngine({.num_threads = 4}, &disks);
  ReplayOptions options = SmallTiles(Layout::kBf16, Tier::kNvme);
  options.stripe_weights = {2, 1};
  const ReplayPlan plan = PlanReplay(ModelInventory(), options);
  StoreOptions store_options = StoreOf(plan, "");
  store_options.directories = folders;
  store_options.stripe_weights = options.stripe_weights;
  auto store = TensorStore::Create(store_options, plan.inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE(WriteStep(**store, 0).ok());
  {
    auto replay = StepReplay::Create(plan, ReplayCompute::kNone, 1, store->get(), &budget_);
    ASSERT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
    disks.fast_bytes = disks.slow_bytes = 0;
    for (int step = 0; step < 2; ++step) {
      const auto replayed = (*replay)->RunStep(Never);
      ASSERT_TRUE(replayed.ok()) << replayed.status();
      EXPECT_EQ(replayed->transfers.read_bytes, plan.transfers.read_bytes);
      EXPECT_EQ(replayed->transfers.write_bytes, plan.transfers.write_bytes);
    }
  }
  const auto fast_share = static_cast<double>(disks.fast_bytes) /
                          static_cast<double>(disks.fast_bytes + disks.slow_bytes);
  EXPECT_NEAR(fast_share, 2.0 / 3, 0.05);
  EXPECT_TRUE(HoldsStep(**store, 0));
}

TEST_F(StepReplayContents, WithAdamWTheStateIsUpdated) {
  EXPECT_FALSE(HoldsThePatternAfterTwoSteps(ReplayCompute::kAdamW));
}

TEST_F(StepReplayContents, AStopEndsItBetweenLayers) {
  auto store =
      TensorStore::Create(StoreOf(plan_, folder_.Path("store")), plan_.inventory, engine_.get());
  ASSERT_TRUE(store.ok() && WriteStep(**store, 0).ok());
  for (const int stop_at : {0, 1, 5, 9, 12}) {
    auto replay = StepReplay::Create(plan_, ReplayCompute::kNone, 1, store->get(), &budget_);
    ASSERT_TRUE(replay.ok() && (*replay)->Start(Never).ok());
    int asked = 0;
    const auto stopped = (*replay)->RunStep([&] { return asked++ == stop_at; });
    EXPECT_EQ(ExitCodeOf(stopped.status()), ExitCode::kInterrupted) << stop_at;
    replay->reset();
    // What was written in part was not committed; another store may begin where it was.
    store->reset();
    ASSERT_TRUE(TensorStore::Remove({folder_.Path("store")}).ok());
    store =
        TensorStore::Create(StoreOf(plan_, folder_.Path("store")), plan_.inventory, engine_.get());
    ASSERT_TRUE(store.ok() && WriteStep(**store, 0).ok());
  }
}

TEST_F(StepReplayContents, AFailedTransferIsTheResult) {
  FaultyDisk disk({.fail_call = 150});
  const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  auto store =
      TensorStore::Create(StoreOf(plan_, folder_.Path("store")), plan_.inventory, engine.get());
  ASSERT_TRUE(store.ok() && WriteStep(**store, 0).ok());
  auto replay = StepReplay::Create(plan_, ReplayCompute::kNone, 1, store->get(), &budget_);
  ASSERT_TRUE(replay.ok()) << replay.status();
  absl::Status status = (*replay)->Start(Never);
  for (int step = 0; step < 9 && status.ok(); ++step) {
    status = (*replay)->RunStep(Never).status();
  }
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("EIO"));
}

}  // namespace
}  // namespace forebay
